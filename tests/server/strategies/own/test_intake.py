"""Updates that are added up while they arrive: the order changes nothing, and nothing is left of them."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from perennial.common.command.config import AUTO_NORM, RunConfig
from perennial.common.wire.arrays import decode, encode
from perennial.common.wire.chains import CHAINS, Vector
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order
from perennial.common.wire.updates import Losses, Update, write_update
from perennial.server.cohort import spool
from perennial.server.cohort.exchange import Answered, Exchange
from perennial.server.cohort.moves import Bound, bound_of
from perennial.server.strategies.own.intake import Intake

pytestmark = pytest.mark.usefixtures("flower_identity")
LAYOUT = Layout(("w", "seen"), ((50,), ()), ("float32", "int64"))
NODES = 12


class Round:
    """An exchange with ``NODES`` nodes of one client each, from a model of zeros."""

    def __init__(self, config: RunConfig, bound: Bound | None, layout: Layout = LAYOUT, nodes: int = NODES) -> None:
        self.layout = layout
        sent = {chain: encode(np.zeros(layout.size, np.float32), layout) for chain in CHAINS}
        self.intake = Intake(config, layout, sent, sent, bound)
        orders = {100 + client: Order(1, 0, 0, (client,), False) for client in range(nodes)}
        self.exchange = Exchange(orders, sent, self.intake.read, "train", 5.0, self.intake.far)
        self.orders = self.exchange.send()
        for order in self.orders:
            order.metadata.__dict__["_message_id"] = str(uuid4())

    def answered(self, replies: Iterable[Message]) -> Answered[Update]:
        found = self.exchange.receive(replies)
        self.intake.settle(node - 100 for node in found.replies)
        return found

    def reply(self, client: int, model: Vector) -> Message:
        update = Update(dict.fromkeys(CHAINS, model), dict.fromkeys(CHAINS, 0.5), Losses(1, 10 + client))
        return Message(write_update(update, self.layout), reply_to=self.orders[client])


def updates() -> list[Vector]:
    """Models whose sum in float64 depends on the order: two cancel each other, and are far larger than the others."""
    models = [np.random.default_rng(client).normal(size=LAYOUT.size).astype(np.float32) for client in range(NODES)]
    models[3], models[7] = models[3] + np.float32(2.0**80), models[3] - np.float32(2.0**80)
    for client, model in enumerate(models):
        # An array of whole numbers, which has no mean.
        model[-1] = client + 5
    return models


def added(order: Sequence[int], models: Sequence[Vector], **keys: Any) -> tuple[dict[str, bytes], list[str]]:
    """Return the means, and the reasons of rejections, of updates that arrive in this order."""
    config = RunConfig(**keys)
    made = Round(config, bound_of(config))
    found = made.answered(made.reply(client, models[client]) for client in order)
    means = {chain: made.intake.mean(chain) for chain in CHAINS}
    assert {float(mean[-1]) for mean in means.values()} == {5.0}
    return {chain: mean.tobytes() for chain, mean in means.items()}, [one.reason for one in found.rejections]


def orders() -> Iterator[list[int]]:
    listed = list(range(NODES))
    yield from (listed, listed[::-1])
    for seed in range(5):
        yield random.Random(seed).sample(listed, NODES)


@pytest.mark.parametrize("weighting", ["clients", "examples"])
@pytest.mark.parametrize("bound", [0.0, 100.0, AUTO_NORM])
def test_the_order_of_arrival_changes_no_bit(weighting: str, bound: float) -> None:
    keys: Mapping[str, Any] = {"weighting": weighting, "max_update_norm": bound}
    first, *others = [added(order, updates(), **keys) for order in orders()]
    assert others == [first] * len(others)


@pytest.mark.parametrize(("bound", "reason"), [(100.0, "max-update-norm is 100"), (AUTO_NORM, "the others by")])
def test_an_update_that_goes_too_far_is_in_no_sum_whenever_it_comes(bound: float, reason: str) -> None:
    models = updates()
    honest = [models[client] for client in range(NODES) if client not in (3, 7)]
    for order in orders():
        means, reasons = added(order, models, max_update_norm=bound)
        assert len(reasons) == 2
        assert all(reason in one for one in reasons)
        found = np.frombuffer(means["mixed"], np.float32)
        np.testing.assert_allclose(found[:-1], np.mean([one[:-1] for one in honest], axis=0), rtol=1e-5, atol=1e-6)


def test_what_earlier_rounds_allow_is_added_at_once_and_what_is_far_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    put = spool.Spool.put
    monkeypatch.setattr(spool.Spool, "put", lambda self, models: kept.append(1) or put(self, models))
    config = RunConfig(max_update_norm=AUTO_NORM)
    bound, ones = bound_of(config), np.ones(LAYOUT.size, np.float32)
    for expected, last in ((NODES, 1.0), (0, 1.0), (1, 1000.0)):
        kept.clear()
        made = Round(config, bound)
        models = [*[ones] * (NODES - 1), ones * np.float32(last)]
        found = made.answered(made.reply(client, model) for client, model in enumerate(models))
        assert len(kept) == expected
        assert len(found.rejections) == (last > 1)
        assert made.intake.mean("mixed").tolist() == ones.tolist()


def test_an_order_without_room_in_the_folder_of_temporary_files_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile.write", full)
    config = RunConfig(max_update_norm=AUTO_NORM)
    made = Round(config, bound_of(config))
    with pytest.raises(Exception, match="No space left on device; let TMPDIR name a folder on a larger disk"):
        made.answered([made.reply(0, np.ones(LAYOUT.size, np.float32))])


@pytest.mark.parametrize("bound", [0.0, AUTO_NORM])
def test_memory_does_not_grow_with_the_number_of_updates(bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_IN_MEMORY", 2**18)
    layout = Layout(("w",), ((20_000,),))

    def peak(nodes: int) -> int:
        config = RunConfig(max_update_norm=bound)
        made = Round(config, bound_of(config), layout, nodes)
        model = np.random.default_rng(0).normal(size=layout.size).astype(np.float32)
        tracemalloc.start()
        try:
            made.answered(made.reply(client, model) for client in range(nodes))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # One update is two models of 80 kB.
    assert peak(100) < peak(10) + 160_000 * 5


def test_a_rule_that_needs_all_updates_keeps_them() -> None:
    made = Round(RunConfig(aggregation="median"), None)
    found = made.answered(made.reply(client, model) for client, model in enumerate(updates()))
    assert [sorted(update.models) for update in found.replies.values()] == [sorted(CHAINS)] * NODES


def test_nothing_but_its_head_is_left_of_a_reply() -> None:
    made = Round(RunConfig(), None)
    found = made.answered(made.reply(client, model) for client, model in enumerate(updates()))
    assert all(message.content == RecordDict() for message in found.messages.values())
    assert not any(update.models for update in found.replies.values())


# --- float16 on the wire ----------------------------------------------------------------------------------------------


def in_float16(keys: Mapping[str, str], head: Vector, moves: Sequence[Vector]) -> Vector:
    """Return what becomes of a model whose clients train it by these moves, from what arrives on their side."""
    config = RunConfig.from_mapping(keys)
    heads = {"mixed": encode(head, LAYOUT)}
    sent = {"mixed": encode(head, LAYOUT, config.wire_down)}
    arrived = decode(sent["mixed"], LAYOUT, "mixed", config.wire_down)
    intake = Intake(config, LAYOUT, heads, sent, None)
    for client, move in enumerate(moves):
        trained = arrived + move
        trained[-1] = client + 7
        update = Update({"mixed": trained}, {"mixed": 0.5}, Losses(1, 10))
        content = write_update(update, LAYOUT, config.wire_up, {"mixed": arrived})
        light = intake.read(content, Order(1, 0, 0, (client,), False))
        assert not light.models
    return intake.mean("mixed")


@pytest.mark.parametrize("down", ["float32", "float16"])
@pytest.mark.parametrize("up", ["float32", "float16"])
def test_moves_that_are_smaller_than_the_rounding_of_a_model_are_not_lost(down: str, up: str) -> None:
    rng = np.random.default_rng(0)
    head = rng.normal(size=LAYOUT.size).astype(np.float32)
    head[-1] = 3
    moves = [rng.normal(scale=1e-5, size=LAYOUT.size).astype(np.float32) for _ in range(4)]
    found = in_float16({"wire-down": down, "wire-up": up}, head, moves)
    # A float16 beside 1 is off by up to 0.0005.
    np.testing.assert_allclose(found[:-1] - head[:-1], np.mean(moves, axis=0)[:-1], atol=5e-7)
    # Whole numbers travel as they are, and are the first node's.
    assert found[-1] == 7
