"""The whole system against the paper: simulations on Ray, judged by a reference that shares no code with them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from perennial.common.command.config import RunConfig
from perennial.common.cycle.schedule import Schedule
from perennial.server.run.checkpoint import Checkpoints
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.training import train
from perennial.server.strategies.record import FoldedRound
from perennial.simulation.ray_grid import RayGrid
from tests.conftest import Simulate, make_data, read_metrics, read_predictors, write_folder
from tests.processes import command_line, descendants, run_command, wait_until, worker_pids
from tests.reference import ALGORITHMS, Model, Setting

ROOT = Path(__file__).resolve().parents[2]
STRATEGIES = ("fedavg", "mm-psgd", "mc-psgd")
# Each starts Ray and workers, in a minute on two idle cores; a busy machine takes its time.
pytestmark = pytest.mark.timeout(1800)

SIZES = list(product((1, 2, 3), (1, 4)))  # blocks, clients
STEPS = (1, 5)
AVERAGING = ("mean", "exponential")
SETTING: dict[str, Any] = {"gamma": 0.3, "eta": 0.25, "cycles": 3, "rounds_per_block": 3}
KEYS = {"model": "linear", "lr-mixed": 0.3, "lr-separate": 0.25, "cycles": 3, "rounds-per-block": 3, "batch-size": 0}


def as_model(arrays: dict[str, Any]) -> Model:
    """Return torch's (classes, features) weight and its bias in the reference's form."""
    return np.vstack([arrays["fc.weight"].T.astype(np.float64), arrays["fc.bias"][None].astype(np.float64)])


def largest_difference(run: Path, expected: list[Model]) -> float:
    found = read_predictors(run)
    assert len(found) == len(expected)
    return max(float(np.abs(as_model(one) - other).max()) for one, other in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def every_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One command that runs every combination; the folder has a sub-folder for each."""
    folder = tmp_path_factory.mktemp("agreement")
    for blocks, clients in SIZES:
        write_folder(folder / "data" / f"{blocks}x{clients}", make_data(blocks, clients))
    content = {
        **KEYS,
        "data": [f"data/{blocks}x{clients}" for blocks, clients in SIZES],
        "strategy": list(STRATEGIES),
        "averaging": list(AVERAGING),
        "local-iterations": list(STEPS),
    }
    (folder / "every.yaml").write_text(json.dumps(content))
    done = run_command("run", "every.yaml", "--set", "output=out", "--set", "seed=3", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def run_of(folder: Path, strategy: str, blocks: int, clients: int, steps: int, averaging: str) -> Path:
    """Find a run by its configuration rather than by its name."""
    for path in folder.iterdir():
        if path.is_dir() and (path / "config.yaml").exists():
            config = RunFolder(path).config()
            found = config["strategy"], config["data"], config["local-iterations"], config["averaging"]
            if found == (strategy, f"data/{blocks}x{clients}", steps, averaging):
                return path
    raise AssertionError(f"no run of {strategy}, {blocks} blocks, {clients} clients, {steps} steps, {averaging}")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("averaging", AVERAGING)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("blocks", "clients"), SIZES)
def test_every_predictor_agrees_with_the_reference(
    every_run: Path, strategy: str, blocks: int, clients: int, steps: int, averaging: str
) -> None:
    run = run_of(every_run, strategy, blocks, clients, steps, averaging)
    setting = Setting(**SETTING, local_iterations=steps, averaging=averaging)
    expected = ALGORITHMS[strategy](make_data(blocks, clients), 3, setting)
    assert largest_difference(run, expected.predictors) < 1e-5


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("blocks", "clients"), [size for size in SIZES if size[0] > 1])
def test_the_chain_chosen_in_every_round_is_the_references_and_both_chains_win(
    every_run: Path, blocks: int, clients: int, steps: int
) -> None:
    expected = ALGORITHMS["mc-psgd"](make_data(blocks, clients), 3, Setting(**SETTING, local_iterations=steps))
    rows = read_metrics(run_of(every_run, "mc-psgd", blocks, clients, steps, "mean"))
    assert [row["chosen"] for row in rows] == expected.chosen
    assert set(expected.chosen) == {"mixed", "separate"}
    # Float32 and float64 could disagree on a closer vote than this.
    assert min(expected.margins) > 1e-4


def test_predictors_differ_between_strategies_averages_and_blocks(every_run: Path) -> None:
    """Agreement would mean little if all of them were the same model."""
    runs = [run_of(every_run, *which) for which in product(("mm-psgd", "mc-psgd"), [3], [4], [5], AVERAGING)]
    models = [as_model(arrays) for run in runs for arrays in read_predictors(run)]
    distances = [np.abs(one - other).max() for place, one in enumerate(models) for other in models[:place]]
    assert min(distances) > 1e-3


def test_predictors_are_described_by_the_manifest(every_run: Path) -> None:
    manifest = json.loads((run_of(every_run, "mc-psgd", 3, 4, 5, "mean") / "predictors" / "manifest.json").read_text())
    assert manifest["strategy"] == "mc-psgd"
    assert manifest["folded"] == [9, 9, 9]
    assert len(manifest["scores"]) == len(manifest["blocks"]) == len(manifest["sha256"]) == 3


# --- Runs that must be equal to the last bit --------------------------------------------------------------------------

RANDOM = {
    "model": "mlp", "cycles": 2, "rounds-per-block": 2, "batch-size": 2, "local-iterations": 3, "participation": 0.5,
    "lr-mixed": 0.1, "lr-separate": 0.05, "checkpoint-every": 1, "seed": 7,
}  # fmt: skip


def bits(run: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((run / "predictors").glob("*.safetensors"))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", make_data(2, 6))


def test_the_three_strategies_share_the_mixed_chain_and_one_pass_equals_three_to_the_last_bit(
    simulate: Simulate, folder: Path
) -> None:
    alone = {name: simulate(f"alone-{name}", data=folder, strategy=name, **RANDOM)[""] for name in STRATEGIES}
    chains = {}
    for name, run in alone.items():
        saved = Checkpoints(run / "checkpoint").latest()
        assert saved is not None
        arrays = saved.tree["strategy"]["mixed"]["arrays"]["arrays"]
        chains[name] = b"".join(arrays[key].tobytes() for key in sorted(arrays))
    assert len(set(chains.values())) == 1
    # A round's train loss depends on every bit of the chain that it started from.
    losses = [[row["train-loss-mixed"] for row in read_metrics(run)] for run in alone.values()]
    assert losses[0] == losses[1] == losses[2]
    assert len(set(losses[0])) == len(losses[0]) == 8

    together = simulate("together", data=folder, strategy=list(STRATEGIES), **RANDOM)
    for name in STRATEGIES:
        assert bits(together[name]) == bits(alone[name])
        assert read_metrics(together[name]) == read_metrics(alone[name])
    assert bits(together["fedavg"])[0] != bits(together["mm-psgd"])[0] != bits(together["mc-psgd"])[0]


def test_two_runs_of_one_seed_are_identical_and_another_seed_is_not(simulate: Simulate, folder: Path) -> None:
    first, again = (simulate(name, data=folder, **RANDOM)[""] for name in ("first", "again"))
    other = simulate("other", data=folder, **{**RANDOM, "seed": 8})[""]
    assert bits(first) == bits(again)
    assert read_metrics(first) == read_metrics(again)
    assert bits(first) != bits(other)


def test_one_client_a_node_and_all_clients_on_two_nodes_agree(simulate: Simulate, folder: Path) -> None:
    spread = simulate("spread", data=folder, nodes=6, **RANDOM)[""]
    packed = simulate("packed", data=folder, nodes=2, **RANDOM)[""]
    for one, other in zip(read_predictors(spread), read_predictors(packed), strict=True):
        assert max(np.abs(one[name] - other[name]).max() for name in one) < 1e-5
    asked = [[row["clients-asked"] for row in read_metrics(run)] for run in (spread, packed)]
    assert asked == [[3] * 8, [3] * 8]


def test_thirty_percent_of_a_thousand_clients_run_and_repeat(simulate: Simulate) -> None:
    keys = {"data": "digits", "clients": 1000, "blocks": 1, "labels-per-block": 10, "participation": 0.3, "cycles": 1}
    keys |= {"rounds-per-block": 3, "local-iterations": 2, "strategy": "mc-psgd"}
    first, again = (simulate(name, **keys)[""] for name in ("first", "again"))
    rows = read_metrics(first)
    assert [(row["clients-asked"], row["clients-answered"]) for row in rows] == [(300, 300)] * 3
    assert rows == read_metrics(again)
    assert bits(first) == bits(again)


# --- Workers that die -------------------------------------------------------------------------------------------------


class Killer:
    """Kills a worker of the grid after round ``after``: at once, or when the next round's orders have gone out."""

    def __init__(self, grid: RayGrid, after: int, *, within_round: bool) -> None:
        self.grid, self.after, self.within_round, self.killed = grid, after, within_round, 0

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        if record.slot.server_round != self.after:
            return
        workers = worker_pids()
        assert workers, descendants(os.getpid())
        self.killed = workers[0]
        if self.within_round:
            # Stopped, it cannot have answered before the kill.
            os.kill(self.killed, signal.SIGSTOP)
            return
        self._kill()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Stands in for the grid's."""
        ids = RayGrid.push_messages(self.grid, messages)
        if self.killed and self.within_round and command_line(self.killed):
            self._kill()
        return ids

    def _kill(self) -> None:
        os.kill(self.killed, signal.SIGKILL)
        wait_until(lambda: not command_line(self.killed), 60, "the worker's end")


@pytest.mark.parametrize("within_round", [False, True], ids=["between rounds", "within a round"])
def test_a_killed_worker_costs_nothing_but_time(
    simulate: Simulate, shared_grid: RayGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_round: bool
) -> None:
    data = write_folder(tmp_path / "data", make_data(2, 4))
    keys: dict[str, Any] = {"data": str(data), "model": "linear", "strategy": "mm-psgd", "cycles": 1, "nodes": 4}
    keys |= {"rounds-per-block": 4, "local-iterations": 5, "batch-size": 2}
    unbroken = simulate("unbroken", **keys)[""]
    run = prepare([Run(RunConfig.from_mapping(keys), RunFolder(tmp_path / "run"))])
    killer = Killer(shared_grid, after=3, within_round=within_round)
    monkeypatch.setattr(shared_grid, "push_messages", killer.push_messages)
    shared_grid.begin(4, run.config.to_mapping())
    train(run, shared_grid, nodes=4, progress=killer)
    assert killer.killed
    assert read_metrics(run.folder.path) == read_metrics(unbroken)
    assert bits(run.folder.path) == bits(unbroken)
