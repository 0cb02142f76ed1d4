"""Faults between server and nodes: whatever happens, the predictors are those of the replies that count."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from perennial.common.command.config import RunConfig
from perennial.common.cycle.schedule import Schedule
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.training import train
from perennial.server.strategies.record import FoldedRound
from perennial.simulation.ray_grid import RayGrid
from tests.chaos.faulty_grid import CORRUPTIONS, ChaosGrid
from tests.chaos.replay import Replay, Rules
from tests.conftest import make_data, read_metrics, read_predictors, write_folder
from tests.processes import worker_pids

BOUND = 3.0
NODES = 5
KEYS = {
    "model": "linear", "cycles": 2, "rounds-per-block": 4, "batch-size": 2, "local-iterations": 3, "lr-mixed": 0.3,
    "lr-separate": 0.25, "seed": 3, "nodes": NODES, "round-attempts": 0, "max-update-norm": BOUND, "participation": 0.8,
}  # fmt: skip


class Chaos:
    """Runs under faults on the shared Ray, each held against its replay."""

    def __init__(self, inner: RayGrid, folder: Path) -> None:
        self.inner, self.folder = inner, folder
        self.data = write_folder(folder / "data", make_data(2, 10))

    def run(
        self, rates: dict[str, float], *, progress: Any = None, **changes: Any
    ) -> tuple[ChaosGrid, Replay, list[dict[str, Any]]]:
        config = RunConfig.from_mapping({"data": str(self.data), **KEYS, **changes})
        run = prepare([Run(config, RunFolder(self.folder / "run"))])
        self.inner.begin(NODES, run.config.to_mapping())
        grid = ChaosGrid(self.inner, rates, seed=changes.get("seed", 3))
        train(run, grid, nodes=NODES, progress=progress)
        initial = load_file(run.folder.path / "initial.safetensors")
        both = ("mixed", "separate") if config.strategy == "mc-psgd" else ("mixed",)
        decay = config.decay if config.averaging == "exponential" else None
        rules = Rules(both, decay, config.min_replies, config.aggregation, config.trim, BOUND)
        replay = Replay(rules, flat(initial), 2)
        replay.run(grid.exchanges)
        rows = read_metrics(run.folder.path)
        check(run.folder.path, replay, rows)
        return grid, replay, rows


def flat(arrays: dict[str, Any]) -> Any:
    return np.concatenate([np.ravel(arrays[key]) for key in sorted(arrays)]).astype(np.float64)


def check(run: Path, replay: Replay, rows: list[dict[str, Any]]) -> None:
    """Hold what the run wrote against the replay."""
    for found, expected in zip(read_predictors(run), replay.predictors, strict=True):
        assert np.abs(flat(found) - expected).max() < 1e-6
    assert replay.folded == [8, 8]
    assert [(row["server-round"], row["block"], row["chosen"]) for row in rows] == [one[:3] for one in replay.rounds]


@pytest.fixture
def chaos(shared_grid: RayGrid, tmp_path: Path) -> Chaos:
    return Chaos(shared_grid, tmp_path)


@pytest.mark.parametrize("fault", ["drop", "late", "double", "error", *CORRUPTIONS])
def test_one_kind_of_fault_leaves_the_predictors_of_the_replies_that_count(chaos: Chaos, fault: str) -> None:
    grid, _, rows = chaos.run({fault: 0.3})
    assert grid.faults.count(fault) > 5
    rejected = sum(row["clients-rejected"] for row in rows)
    assert (rejected == 0) == (fault == "double")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("averaging", ["mean", "exponential"])
@pytest.mark.parametrize("aggregation", ["mean", "median", "trimmed-mean"])
def test_all_faults_together(chaos: Chaos, seed: int, averaging: str, aggregation: str) -> None:
    rates = dict.fromkeys(["drop", "late", "double", "error", *CORRUPTIONS], 0.05)
    grid, _, rows = chaos.run(rates, seed=seed, averaging=averaging, aggregation=aggregation)
    assert len(set(grid.faults)) > 5
    assert [row["server-round"] for row in rows] == list(range(1, 17))


def test_a_single_chain_under_faults(chaos: Chaos) -> None:
    chaos.run({"drop": 0.2, "nan": 0.2, "late": 0.1}, strategy="mm-psgd")


def test_rounds_without_a_quorum_are_repeated_and_count_once(chaos: Chaos) -> None:
    _, replay, rows = chaos.run({"drop": 0.2}, **{"min-replies": 0.8})
    assert replay.repeated > 0
    assert max(row["attempts"] for row in rows) > 1


# --- Workers that die or stand still ----------------------------------------------------------------------------------


class Strike:
    """Does something to a worker at the end of some rounds."""

    def __init__(self, rounds: set[int], act: Callable[[int], None]) -> None:
        self.rounds, self.act, self.struck = rounds, act, 0

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        if record.slot.server_round in self.rounds and (found := worker_pids()):
            self.struck += 1
            self.act(found[self.struck % len(found)])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


class StandStill(Strike):
    """Stops a worker after ``server_round``, and lets it go on once a round has gone by without its replies."""

    def __init__(self, server_round: int) -> None:
        super().__init__({server_round}, self._stop)
        self._stopped = 0

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._stopped = pid

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        if self._stopped and record.account.rejections:
            os.kill(self._stopped, signal.SIGCONT)
            self._stopped = 0
        super().round_done(record, scores, schedule)


def test_killed_workers_under_faults(chaos: Chaos) -> None:
    strike = Strike({3, 9}, kill)
    _, _, rows = chaos.run({"drop": 0.1, "nan": 0.1}, progress=strike)
    assert strike.struck == 2
    # What a dead worker had another one does.
    assert not any("worker died" in rejection["reason"] for row in rows for rejection in row["rejections"])


def test_a_worker_that_stands_still_past_the_deadline_is_late_and_not_waited_for(chaos: Chaos) -> None:
    strike = StandStill(4)
    _, _, rows = chaos.run({}, progress=strike, **{"round-timeout": 1.0, "min-replies": 0.3})
    assert strike.struck == 1
    assert any("no reply in time" in rejection["reason"] for row in rows for rejection in row["rejections"])
