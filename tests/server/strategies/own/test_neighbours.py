"""The neighbours: on the grid of nodes in memory training adds 1 to a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.wire.layout import Layout
from perennial.server.cohort.roster import Roster
from perennial.server.run.tree import read, write
from perennial.server.strategies.own.neighbours.fedrep import head_of
from perennial.server.strategies.own.neighbours.ifca import starts
from perennial.server.strategies.own.ways import WAYS, assemble
from tests.server.conftest import LAYOUT, MODEL_BYTES, FakeGrid, Outcome, value

RunStrategy = Callable[..., Outcome]
TRUNK_AND_HEAD = Layout(("trunk.weight", "head.weight"), ((1,), (1,)))


def a_grid(**options: Any) -> FakeGrid:
    return FakeGrid({11: (0,), 12: (1,), 13: (2,), 14: (3,)}, **options)


def vector(*values: float) -> Any:
    return np.array(values, np.float32)


# --- Server optimisers ------------------------------------------------------------------------------------------------


def test_momentum_adds_the_velocity_of_the_rounds_before(run_strategy: RunStrategy) -> None:
    """Each round's mean is the model plus 1: the velocity goes to 2."""
    keys = {"strategy": "fedavgm", "blocks": 1, "cycles": 1, "rounds_per_block": 3, "server_lr": 0.5}
    outcome = run_strategy(a_grid(blocks=1), server_momentum=0.5, **keys)
    assert outcome.predictors == [0.5 * 1 + 0.5 * 1.5 + 0.5 * 1.75]


def test_fedavgm_gives_every_block_its_one_model(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedavgm", cycles=1, rounds_per_block=1, server_momentum=0.5)
    assert outcome.predictors == [2.5, 2.5]


def test_fedavgm_without_momentum_is_fedavg(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedavgm", server_momentum=0.0)
    assert outcome.predictors == run_strategy(a_grid(), strategy="fedavg").predictors == [8, 8]


def test_fedadam_moves_by_its_learning_rate_at_first(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedadam", blocks=1, cycles=1, rounds_per_block=1, server_lr=0.01)
    corrected = 0.01 * math.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    assert outcome.predictors == [pytest.approx(corrected * 0.1 / (0.1 + 0.001), rel=1e-6)]


def test_zero_as_servers_learning_rate_is_the_strategys_own(run_strategy: RunStrategy) -> None:
    for strategy, lr in (("fedavgm", 1.0), ("fedadam", 0.01)):
        given = run_strategy(a_grid(), strategy=strategy, server_lr=lr)
        assert run_strategy(a_grid(), strategy=strategy).predictors == given.predictors


# --- A head for each block --------------------------------------------------------------------------------------------


def test_the_head_is_the_last_layer() -> None:
    layers = Layout(("conv.weight", "conv.bias", "fc.weight", "fc.bias"), ((2, 3), (2,), (4, 2), (4,)))
    assert head_of(layers) == ("fc.weight", "fc.bias")
    assert head_of(Layout(("w",), ((5,),))) == ("w",)


def both(model: Any) -> list[float]:
    return [float(model[name].numpy()[0]) for name in TRUNK_AND_HEAD.names]


def test_fedrep_carries_the_trunk_over_and_keeps_a_head_for_each_block(
    run_strategy: RunStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.conftest.LAYOUT", TRUNK_AND_HEAD)
    outcome = run_strategy(a_grid(), strategy="fedrep")
    # The grid's training sets both arrays to the trunk's value plus 1; block 0 was last trained in round 6.
    assert [both(model) for model in outcome.reader.models] == [[8, 6], [8, 8]]


def test_fedrep_starts_a_block_from_todays_trunk_and_the_blocks_head(
    run_strategy: RunStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.conftest.LAYOUT", TRUNK_AND_HEAD)
    outcome = run_strategy(a_grid(), strategy="fedrep", cycles=1, rounds_per_block=1)
    # After block 1's only round; block 0 has its own head, and so had block 1 before that.
    assert [both(model) for model in outcome.strategy.block_models()] == [[2, 1], [2, 2]]


# --- A choice among models --------------------------------------------------------------------------------------------


def best_for_the_block(order: Any, models: dict[str, float]) -> tuple[float, float]:
    """Block 0 likes the model that was trained most, block 1 the one that was trained least."""
    sign = -1.0 if order.block == 0 else 1.0
    return 10 + sign * models["mixed"], 10 + sign * models.get("separate", 0.0)


def test_ifca_trains_the_model_with_the_smallest_loss(run_strategy: RunStrategy) -> None:
    grid = a_grid(losses=best_for_the_block)
    outcome = run_strategy(grid, strategy="ifca")
    trained = [sent.models["mixed"] for sent in grid.sent if sent.node == 11 and sent.message_type == MessageType.TRAIN]
    assert trained == [0, 1, 0, 1, 2, 3, 2, 3]
    assert outcome.watcher.models[3] == [2, 2]
    assert outcome.watcher.models[2] == [2, 1]


def test_blocks_that_choose_one_model_share_what_it_learns(run_strategy: RunStrategy) -> None:
    """The first model always wins here: then IFCA is FedAvg."""
    outcome = run_strategy(a_grid(), strategy="ifca")
    assert outcome.predictors == [8, 8]
    models = outcome.strategy.mixed.strategy.state_dict()["models"]
    assert [value(model) for model in models] == [8, 0]


def test_ifca_sends_all_models_to_be_judged_and_one_to_be_trained(run_strategy: RunStrategy) -> None:
    for blocks, judged in ((2, 2), (3, 4)):
        grid = a_grid(blocks=blocks)
        outcome = run_strategy(grid, strategy="ifca", blocks=blocks, cycles=1, rounds_per_block=1)
        row = outcome.rows[0]
        assert row["bytes-down"] == 4 * (judged + 1) * MODEL_BYTES
        assert row["bytes-up"] == 4 * MODEL_BYTES
        assert (row["clients-asked"], row["clients-answered"], row["attempts"]) == (4, 4, 1)


def test_ifcas_models_start_apart_with_the_same_values() -> None:
    initial = vector(1, 2, 3, 4, 5, 6)
    models = starts(initial, Layout(("a", "b"), ((3,), (3,))), 3, seed=0)
    assert models[0] is initial
    assert all(sorted(model[:3]) == [1, 2, 3] and sorted(model[3:]) == [4, 5, 6] for model in models)
    assert len({model.tobytes() for model in models}) == 3


# --- What they share --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [name for name, way in WAYS.items() if way.own])
def test_a_checkpoint_goes_on_to_the_last_bit(run_strategy: RunStrategy, strategy: str) -> None:
    grid = a_grid(losses=best_for_the_block)
    whole = run_strategy(grid, strategy=strategy)
    resumed = run_strategy(grid, read(*write(whole.watcher.states[2])), strategy=strategy)
    assert resumed.rows == whole.rows[3:]
    ends = [[*outcome.strategy.block_models(), *outcome.reader.models] for outcome in (whole, resumed)]
    assert [model["w"].data for model in ends[0]] == [model["w"].data for model in ends[1]]


def test_a_neighbour_shares_its_pass_with_none() -> None:
    configs = [RunConfig(strategy=name) for name in ("fedadam", "mm-psgd")]
    with pytest.raises(AssertionError, match="must share its training"):
        assemble(configs, schedule_of(configs[0]), LAYOUT, Roster(configs[0], 5))
