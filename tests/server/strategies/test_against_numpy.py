"""MM-PSGD and MC-PSGD under a quickstart's app, against Algorithms 1 and 2 written out in NumPy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from numpy.typing import NDArray

from perennial import MCPSGD, MMPSGD, RoundSchedule
from perennial.server.link.memory_grid import FIRST_NODE_ID, MemoryGrid
from perennial.server.strategies.record import FoldedRound
from tests.library_reference import Run, mc_psgd_exponential, mm_psgd_mean
from tests.server.strategies.quickstart import STEPS, initial_arrays, load_data, make_app

NODES, NAMES = 6, ("day", "night", "weekend")
SCHEDULE = RoundSchedule(list(NAMES), rounds_per_block=3, cycles=3)
CONFIG, SEPARATE = ConfigRecord({"lr": 0.02}), ConfigRecord({"lr": 0.05})


def vector(arrays: ArrayRecord) -> NDArray[np.float64]:
    return np.append(arrays["fc.weight"].numpy(), arrays["fc.bias"].numpy()).astype(float)


def setting(rounds: list[FoldedRound]) -> Run:
    """Return what the reference needs: the data, and block and cohort of every round, as they were recorded."""
    data = [[load_data(node, block) for node in range(NODES)] for block in range(3)]
    cohorts = [[node - FIRST_NODE_ID for node in one.nodes] for one in rounds]
    return Run(data, [one.slot.block for one in rounds], cohorts, STEPS, lr=0.02, lr_separate=0.05)


def trained(strategy: Any) -> tuple[Any, list[FoldedRound]]:
    rounds: list[FoldedRound] = []
    random.seed(3)
    grid = MemoryGrid(make_app(), NODES)
    return strategy.start(grid, initial_arrays(), train_config=CONFIG, on_round=rounds.append), rounds


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_mm_psgd_agrees_with_numpy(fraction: float) -> None:
    result, rounds = trained(MMPSGD(schedule=SCHEDULE, averaging="mean", fraction_train=fraction))
    assert len(rounds) == 27
    assert {len(one.nodes) for one in rounds} == {round(NODES * fraction)}
    expected = mm_psgd_mean(setting(rounds), vector(initial_arrays()))
    for block, name in enumerate(NAMES):
        assert np.abs(vector(result.predictors[name]) - expected[block]).max() < 1e-5


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_mc_psgd_agrees_with_numpy(fraction: float) -> None:
    result, rounds = trained(MCPSGD(schedule=SCHEDULE, separate_config=SEPARATE, fraction_train=fraction))
    expected, chosen = mc_psgd_exponential(setting(rounds), vector(initial_arrays()), 0.5)
    assert [one.chosen for one in rounds] == chosen
    assert set(chosen) == {"mixed", "separate"}
    for block, name in enumerate(NAMES):
        assert np.abs(vector(result.predictors[name]) - expected[block]).max() < 1e-5
