"""Networks that are told the block: every engine agrees with the loop, and the native one with its biases by block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from perennial.client import engines
from perennial.client.engines.engine import Received, Work
from perennial.client.engines.told_native import ToldNativeEngine
from perennial.common.command.errors import InputError
from perennial.common.data.examples import ArrayType, Signature
from perennial.common.task import ready
from tests.client.engines.marks import needs_compiler
from tests.client.engines.reference import distance, vector

torch.set_num_threads(1)
BLOCKS = 3


def signature(shape: tuple[int, ...], told: str) -> Signature:
    plain = Signature.labelled(shape, 4)
    return replace(plain, x=(*plain.x, ArrayType(("float32",), (BLOCKS,))), told=told)


def work_of(shape: tuple[int, ...], block: int, clients: int = 3) -> list[Work]:
    rng = np.random.default_rng(block)
    x, y = rng.standard_normal((30, *shape), np.float32), rng.integers(0, 4, 30)
    told = np.broadcast_to(np.eye(BLOCKS, dtype=np.float32)[block], (30, BLOCKS))
    return [Work(client, (x, told), y, rng.integers(0, 30, (10, 2)), np.arange(12)) for client in range(clients)]


@needs_compiler
@pytest.mark.parametrize(("model", "shape"), [("cnn", (3, 16, 16)), ("mlp", (6,))])
def test_all_engines_train_judge_and_guess_alike(model: str, shape: tuple[int, ...]) -> None:
    kind = signature(shape, "block")
    network = ready.build(ready.classification, kind, model, seed=1)
    start = vector(network)
    assert engines.choose("auto", network, kind).name == "native"
    loop, *others = (engines.choose(name, network, kind) for name in ("loop", "stacked", "native"))
    for block in (2, 0):
        work = work_of(shape, block)
        expected, judged = loop.train([Received(start, 0.05)], work)[0], loop.judge([start], work)[0]
        for engine in others:
            found = engine.train([Received(start, 0.05)], work)[0]
            assert distance(found.params, expected.params) < 1e-5
            assert found.train_losses == pytest.approx(expected.train_losses, rel=1e-5)
            assert found.losses == pytest.approx(expected.losses, rel=1e-5)
            assert engine.judge([start], work)[0] == pytest.approx(judged, rel=1e-5)
        native, rows = others[-1], np.arange(30)
        assert isinstance(native, ToldNativeEngine)
        with torch.no_grad():
            network.load_state_dict(_state(network, expected.params))
            answers = network(*map(torch.from_numpy, [np.ascontiguousarray(x) for x in work[0].x])).argmax(1).numpy()
        right = native.right(expected.params, work[0].x, work[0].y, rows)
        assert right.tolist() == (answers == work[0].y).tolist()
        start = expected.params


def test_an_order_of_two_blocks_is_refused_and_the_time_goes_to_another_engine() -> None:
    kind = signature((6,), "block")
    network = ready.build(ready.classification, kind, "mlp")
    native = engines.choose("native", network, kind)
    with pytest.raises(ValueError, match=r"an order must be of one block, got \[0, 1\]"):
        native.train([Received(vector(network), 0.1)], [*work_of((6,), 0), *work_of((6,), 1)])
    timed = signature((6,), "time")
    network = ready.build(ready.classification, timed, "mlp")
    assert engines.choose("auto", network, timed).name == "stacked"
    with pytest.raises(InputError, match="engine native does not take this model: it is told the time"):
        engines.choose("native", network, timed)


def _state(network: torch.nn.Module, params: np.ndarray) -> dict[str, torch.Tensor]:  # type: ignore[type-arg]
    state, at = {}, 0
    for name, value in network.state_dict().items():
        state[name] = torch.from_numpy(params[at : at + value.numel()]).view_as(value)
        at += value.numel()
    return state
