"""The ClientApp on real messages: who trains, on what, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from perennial.client.app import app
from perennial.common.command.config import RunConfig
from perennial.common.data import manifest
from perennial.common.data.examples import Signature
from perennial.common.task import models
from perennial.common.wire.arrays import decode, encode
from perennial.common.wire.layout import HALF, Layout
from perennial.common.wire.orders import Order, write_order
from perennial.common.wire.protocol import Identity, ProtocolError, read_identity, write_query
from perennial.common.wire.updates import Update, read_losses, read_update
from tests.conftest import make_data, write_folder
from tests.reference import softmax_loss

pytestmark = pytest.mark.usefixtures("flower_identity")

LAYOUT = Layout.of(models.arrays_of(models.build("linear", (2, 3), 3)))
DATA = make_data(2, 3)
ZERO = np.zeros(LAYOUT.size, np.float32)
SOME = np.linspace(-0.5, 0.5, LAYOUT.size, dtype=np.float32)

SETTINGS: dict[str, Any] = {"model": "linear", "engine": "loop", "local_iterations": 1, "batch_size": 0,
                            "lr_mixed": 0.5, "lr_separate": 0.25}  # fmt: skip

Ask = Callable[..., RecordDict]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Send content to a node that hosts all three clients, and return its answer's content."""
    folder = write_folder(tmp_path / "data", DATA)

    def answer(content: RecordDict, message_type: str, **keys: Any) -> RecordDict:
        config = RunConfig(**{**SETTINGS, **keys}).to_mapping()
        context = Context(1, 5, {"data": str(folder)}, RecordDict(), config)
        reply = app(Message(content, 5, message_type), context)
        assert not reply.has_error()
        return reply.content

    return answer


def an_order(**changes: Any) -> Order:
    plain: dict[str, Any] = {"server_round": 1, "cycle": 0, "block": 0, "clients": (0, 1, 2), "report_loss": False}
    return Order(**{**plain, **changes})


def train_order(order: Order, **chains: Any) -> RecordDict:
    return write_order(order, {name: encode(model, LAYOUT) for name, model in chains.items()})


def trained(ask: Ask, order: Order, settings: dict[str, Any] | None = None, **chains: Any) -> Update:
    content = ask(train_order(order, **chains), "train", **(settings or {}))
    return read_update(content, order, LAYOUT, tuple(chains))


def as_reference(vector: Any) -> Any:
    arrays = LAYOUT.unflatten(vector)
    return np.vstack([arrays["fc.weight"].T, arrays["fc.bias"][None]]).astype(np.float64)


def step(vector: Any, client: int, block: int, rate: float) -> Any:
    start = as_reference(vector)
    return start - rate * softmax_loss(start, DATA[block][client])[1]


def test_in_float16_an_update_is_what_training_has_added(ask: Ask) -> None:
    start = np.random.default_rng(1).normal(size=LAYOUT.size).astype(np.float32)
    sent = encode(start, LAYOUT, HALF)
    arrived, order = decode(sent, LAYOUT, "mixed", HALF), an_order()
    reply = ask(write_order(order, {"mixed": sent}), "train", wire_down=HALF, wire_up=HALF)
    moved = read_update(reply, order, LAYOUT, ("mixed",), HALF).models["mixed"]
    whole = trained(ask, order, mixed=arrived).models["mixed"]
    np.testing.assert_allclose(moved, whole - arrived, rtol=2.0**-10, atol=1e-7)


def test_a_query_is_answered_with_clients_and_blocks(ask: Ask) -> None:
    assert read_identity(ask(write_query(), "query")) == Identity((0, 1, 2), 2)


def test_a_node_serves_a_server_that_has_newer_keys(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", DATA)
    config = {**RunConfig(model="linear").to_mapping(), "of-next-year": 5}
    context = Context(1, 5, {"data": str(folder)}, RecordDict(), config)
    assert not app(Message(write_query(), 5, "query"), context).has_error()


def test_a_whole_shard_step_is_the_gradients(ask: Ask) -> None:
    update = trained(ask, an_order(clients=(1,), block=1), mixed=SOME)
    assert np.abs(as_reference(update.models["mixed"]) - step(SOME, 1, 1, 0.5)).max() < 1e-6
    assert update.train_losses["mixed"] == pytest.approx(softmax_loss(as_reference(SOME), DATA[1][1])[0], abs=1e-6)


def test_an_update_is_the_plain_mean_over_the_clients(ask: Ask) -> None:
    update = trained(ask, an_order(clients=(0, 2)), mixed=SOME)
    expected = (step(SOME, 0, 0, 0.5) + step(SOME, 2, 0, 0.5)) / 2
    assert np.abs(as_reference(update.models["mixed"]) - expected).max() < 1e-6
    assert (update.losses.num_clients, update.losses.num_examples) == (2, len(DATA[0][0][1]) + len(DATA[0][2][1]))


def test_each_chain_has_its_own_model_and_rate(ask: Ask) -> None:
    update = trained(ask, an_order(clients=(0,)), mixed=SOME, separate=ZERO)
    assert np.abs(as_reference(update.models["mixed"]) - step(SOME, 0, 0, 0.5)).max() < 1e-6
    assert np.abs(as_reference(update.models["separate"]) - step(ZERO, 0, 0, 0.25)).max() < 1e-6


def test_both_chains_see_the_same_batches(ask: Ask) -> None:
    settings = {"batch_size": 2, "local_iterations": 5, "lr_mixed": 0.25}
    update = trained(ask, an_order(), settings, mixed=SOME, separate=SOME)
    assert (update.models["mixed"] == update.models["separate"]).all()


def test_losses_are_of_the_received_models_and_each_client_counts_alike(ask: Ask) -> None:
    order = an_order(report_loss=True)
    update = trained(ask, order, mixed=SOME, separate=ZERO)
    expected = np.mean([softmax_loss(as_reference(SOME), shard)[0] for shard in DATA[0]])
    assert update.losses.mixed == pytest.approx(expected, abs=1e-6)
    assert update.losses.separate == pytest.approx(np.log(3), abs=1e-6)
    losses = read_losses(ask(train_order(order, mixed=SOME, separate=ZERO), "evaluate"), order)
    assert (losses.mixed, losses.separate) == pytest.approx((update.losses.mixed, update.losses.separate), abs=1e-9)
    assert losses.num_examples == sum(len(y) for _, y in DATA[0])


def test_no_loss_is_reported_where_none_is_asked_for(ask: Ask) -> None:
    assert "loss-mixed" not in ask(train_order(an_order(), mixed=SOME), "train")["update"]


def test_a_clients_batches_do_not_depend_on_who_else_is_asked(ask: Ask) -> None:
    keys = {"batch_size": 2, "local_iterations": 4}
    alone = [trained(ask, an_order(clients=(client,)), keys, mixed=SOME).models["mixed"] for client in range(3)]
    together = trained(ask, an_order(), keys, mixed=SOME).models["mixed"]
    assert np.abs(np.mean(alone, axis=0) - together).max() < 1e-6


def test_batches_depend_on_round_and_seed(ask: Ask) -> None:
    keys = {"batch_size": 2, "local_iterations": 4}
    found = [
        trained(ask, an_order(server_round=number), {**keys, "seed": seed}, mixed=SOME).models["mixed"].tobytes()
        for number, seed in ((1, 0), (1, 0), (2, 0), (1, 1))
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_selection_examples_bound_what_is_judged(ask: Ask) -> None:
    order = an_order(report_loss=True, clients=(0,))
    content = train_order(order, mixed=SOME, separate=SOME)
    few = read_update(ask(content, "train", selection_examples=2), order, LAYOUT, ("mixed", "separate"))
    every = read_update(ask(content, "train", selection_examples=10**6), order, LAYOUT, ("mixed", "separate"))
    assert few.losses.mixed == few.losses.separate
    assert few.losses.mixed != every.losses.mixed
    assert every.losses.mixed == pytest.approx(softmax_loss(as_reference(SOME), DATA[0][0])[0], abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"clients": (0, 7)}, "client 7 is not hosted here"), ({"block": 2}, r"block must be in \[0, 2\), got 2")],
)
def test_an_order_for_what_is_not_here_is_refused(ask: Ask, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        ask(train_order(an_order(**changes), mixed=SOME), "train")


def test_a_loss_that_is_not_finite_is_an_error_with_round_block_chain_and_client(ask: Ask) -> None:
    order = an_order(server_round=4, block=1)
    huge = np.where(SOME > 0, np.float32(3e38), np.float32(-3e38))
    with pytest.raises(FloatingPointError, match="not finite in round 4, block 1, separate chain, client 0; lower the"):
        ask(train_order(order, mixed=SOME, separate=huge), "train")


def test_a_model_of_another_shape_is_refused(ask: Ask) -> None:
    other = Layout.of(models.arrays_of(models.build("linear", (2, 3), 4)))
    content = write_order(an_order(), {"mixed": encode(np.zeros(other.size, np.float32), other)})
    with pytest.raises(ProtocolError, match=r"mixed: fc\.weight must be numpy float32 \(3, 6\)"):
        ask(content, "train")


def test_a_node_trains_and_judges_by_the_task_of_the_run(tmp_path: Path) -> None:
    folder, rng = tmp_path / "numbers", np.random.default_rng(0)
    x, y = rng.normal(size=(5, 2)).astype(np.float32), rng.normal(size=5).astype(np.float32)
    manifest.write(folder, Signature.of((x,), y, "here"), 1, [4])
    (folder / "client-00004").mkdir()
    np.savez(folder / "client-00004" / "block-0.npz", x=x, y=y)
    config = RunConfig(**{**SETTINGS, "task": "regression"}).to_mapping()
    layout = Layout(("fc.weight", "fc.bias"), ((1, 2), (1,)))
    start = np.array([0.5, -1, 0.25], np.float32)
    order = an_order(clients=(4,), report_loss=True)
    content = write_order(order, {"mixed": encode(start, layout)})
    reply = app(Message(content, 5, "train"), Context(1, 5, {"data": str(folder)}, RecordDict(), config))
    update = read_update(reply.content, order, layout, ("mixed",))
    errors = x @ start[:2] + start[2] - y
    slope = 2 * np.append(errors @ x, errors.sum()) / 5
    assert np.abs(update.models["mixed"] - (start - 0.5 * slope)).max() < 1e-6
    assert update.losses.mixed == pytest.approx(float((errors**2).mean()), rel=1e-6)
