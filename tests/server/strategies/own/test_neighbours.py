"""The neighbours through Flower's loop: on the grid of nodes in memory training adds 1 to a model."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType

from perennial.common.command.config import NEIGHBOURS, RunConfig
from perennial.common.wire.layout import Layout
from perennial.server.run.checkpoint import Checkpoint, load_latest, save_checkpoint
from perennial.server.run.readers import reader_of
from perennial.server.strategies.own import FedRep, OwnFedAdam, OwnFedAvgM, strategy_for
from perennial.server.strategies.own.neighbours.fedrep import head_start
from perennial.server.strategies.own.neighbours.ifca import IFCA, starts
from perennial.server.strategies.own.neighbours.optimisers import adam_step, momentum_step
from tests.server.conftest import MODEL_BYTES, FakeGrid, Outcome

RunStrategy = Callable[..., Outcome]
TRUNK_AND_HEAD = Layout(("trunk.weight", "head.weight"), ((1,), (1,)))


def a_grid(**options: Any) -> FakeGrid:
    return FakeGrid({11: (0,), 12: (1,), 13: (2,), 14: (3,)}, **options)


def vector(*values: float) -> Any:
    return np.array(values, np.float32)


# --- Server optimisers ------------------------------------------------------------------------------------------------


def test_momentum_adds_the_velocity_of_the_rounds_before() -> None:
    model, memory = momentum_step(vector(1), vector(3), {}, lr=0.5, momentum=0.5)
    assert (model[0], memory["velocity"][0]) == (2, -2)
    model, memory = momentum_step(model, vector(4), memory, lr=0.5, momentum=0.5)
    assert (model[0], memory["velocity"][0]) == (3.5, -3)


def test_adam_divides_the_first_moment_by_the_root_of_the_second() -> None:
    model, memory = adam_step(vector(0), vector(2), {}, 1, lr=0.1, betas=(0.5, 0.75), tau=1.0)
    assert (memory["first"][0], memory["second"][0]) == (1, 1)
    corrected = 0.1 * math.sqrt(1 - 0.75**2) / (1 - 0.5**2)
    assert model[0] == np.float32(corrected * 1 / (1 + 1))
    _, memory = adam_step(vector(0), vector(4), memory, 2, lr=0.1, betas=(0.5, 0.75), tau=1.0)
    assert (memory["first"][0], memory["second"][0]) == (2.5, 4.75)


def test_fedavgm_gives_every_block_its_one_model(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedavgm", cycles=1, rounds_per_block=1, server_momentum=0.5)
    assert isinstance(outcome.strategy, OwnFedAvgM)
    assert outcome.predictors == [2.5, 2.5]


def test_fedavgm_without_momentum_is_fedavg(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedavgm", server_momentum=0.0)
    assert outcome.predictors == run_strategy(a_grid(), strategy="fedavg").predictors == [8, 8]


def test_fedadam_moves_by_its_learning_rate_at_first(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedadam", blocks=1, cycles=1, rounds_per_block=1, server_lr=0.01)
    assert isinstance(outcome.strategy, OwnFedAdam)
    corrected = 0.01 * math.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    assert outcome.predictors == [float(np.float32(corrected * 0.1 / (0.1 + 0.001)))]


def test_zero_as_servers_learning_rate_is_the_strategys_own(run_strategy: RunStrategy) -> None:
    for strategy, lr in (("fedavgm", 1.0), ("fedadam", 0.01)):
        given = run_strategy(a_grid(), strategy=strategy, server_lr=lr)
        assert run_strategy(a_grid(), strategy=strategy).predictors == given.predictors


# --- A head for each block --------------------------------------------------------------------------------------------


def test_the_head_is_the_last_layer() -> None:
    layers = Layout(("conv.weight", "conv.bias", "fc.weight", "fc.bias"), ((2, 3), (2,), (4, 2), (4,)))
    assert head_start(layers) == 8
    assert head_start(Layout(("w",), ((5,),))) == 0


def test_fedrep_carries_the_trunk_over_and_keeps_a_head_for_each_block(
    run_strategy: RunStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.conftest.LAYOUT", TRUNK_AND_HEAD)
    outcome = run_strategy(a_grid(), strategy="fedrep")
    assert isinstance(outcome.strategy, FedRep)
    predictors = outcome.strategy.state.predictors[0].models
    # The grid's training sets both arrays to the trunk's value plus 1; block 0 was last trained in round 6.
    assert [list(model) for model in predictors] == [[8, 6], [8, 8]]


def test_fedrep_starts_a_block_from_todays_trunk_and_the_blocks_head(
    run_strategy: RunStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.conftest.LAYOUT", TRUNK_AND_HEAD)
    outcome = run_strategy(a_grid(), strategy="fedrep")
    after_block_0 = outcome.watcher.states[1].chains
    assert [list(model) for model in after_block_0.separate] == [[2, 2], [2, 0]]


# --- A choice among models --------------------------------------------------------------------------------------------


def best_for_the_block(order: Any, models: dict[str, float]) -> tuple[float, float]:
    """Block 0 likes the model that was trained most, block 1 the one that was trained least."""
    sign = -1.0 if order.block == 0 else 1.0
    return 10 + sign * models["mixed"], 10 + sign * models.get("separate", 0.0)


def test_ifca_trains_the_model_with_the_smallest_loss(run_strategy: RunStrategy) -> None:
    grid = a_grid(losses=best_for_the_block)
    outcome = run_strategy(grid, strategy="ifca")
    assert isinstance(outcome.strategy, IFCA)
    trained = [sent.models["mixed"] for sent in grid.sent if sent.node == 11 and sent.message_type == MessageType.TRAIN]
    assert trained == [0, 1, 0, 1, 2, 3, 2, 3]
    halfway = outcome.watcher.states[3]
    assert [float(model[0]) for model in halfway.predictors[0].models] == [2, 2]
    assert [float(model[0]) for model in outcome.watcher.states[2].predictors[0].models] == [2, 1]


def test_blocks_that_choose_one_model_share_what_it_learns(run_strategy: RunStrategy) -> None:
    """The first model always wins here: then IFCA is FedAvg."""
    outcome = run_strategy(a_grid(), strategy="ifca")
    assert outcome.predictors == [8, 8]
    assert float(outcome.strategy.state.memory["model-1"][0]) == 0


def test_ifca_sends_all_models_to_be_judged_and_one_to_be_trained(run_strategy: RunStrategy) -> None:
    for blocks, judged in ((2, 2), (3, 4)):
        grid = a_grid(blocks=blocks)
        outcome = run_strategy(grid, strategy="ifca", blocks=blocks, cycles=1, rounds_per_block=1)
        row = outcome.watcher.records[0].row(("mixed", "separate"))
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


@pytest.mark.parametrize("strategy", NEIGHBOURS)
def test_a_checkpoint_goes_on_to_the_last_bit(run_strategy: RunStrategy, tmp_path: Path, strategy: str) -> None:
    grid = a_grid(losses=best_for_the_block)
    whole = run_strategy(grid, strategy=strategy)
    save_checkpoint(tmp_path, Checkpoint(whole.watcher.states[2], {}, (0,), {"strikes": {}, "until": {}}))
    found = load_latest(tmp_path)
    assert found is not None
    resumed = run_strategy(grid, found.state, strategy=strategy)
    ends = [outcome.strategy.state for outcome in (whole, resumed)]
    vectors = [[*end.memory.values(), *end.chains.separate, *end.predictors[0].models] for end in ends]
    assert [one.tobytes() for one in vectors[0]] == [one.tobytes() for one in vectors[1]]
    assert ends[0].slot == ends[1].slot


def test_a_neighbour_shares_its_pass_with_none() -> None:
    readers = [reader_of(RunConfig(strategy=name)) for name in ("fedadam", "mm-psgd")]
    with pytest.raises(AssertionError, match="must share its training"):
        strategy_for(readers)
