"""What tests of several packages share: folders of shards written by hand, what a run wrote, and one Ray for all."""

from __future__ import annotations

import gc
import json
import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import settings
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.reference import Data

if TYPE_CHECKING:
    from perennial.simulation.ray_grid import RayGrid

# A shell lets what it runs in the background ignore Ctrl-C, and processes inherit that: those under test must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def make_data(blocks: int, clients: int, *, seed: int = 0, drift: float = 2.0) -> Data:
    """Return blocks whose rules differ by ``drift`` around a common one: (2, 3) features, 3 classes."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(6, 3))
    data = []
    for _ in range(blocks):
        rule = common + drift * rng.normal(size=(6, 3))
        xs = [rng.normal(size=(int(rng.integers(5, 12)), 2, 3)).astype(np.float32) for _ in range(clients)]
        data.append([(x, (x.reshape(len(x), 6) @ rule).argmax(axis=1)) for x in xs])
    return data


def write_folder(folder: Path, data: Data, *, classes: int = 3, test: bool = True) -> Path:
    """Write ``data`` as the folder of shards that the design describes, with no help from the packages."""
    blocks, clients = len(data), len(data[0])
    for client in range(clients):
        (folder / f"client-{client:05d}").mkdir(parents=True)
        for block in range(blocks):
            x, y = data[block][client]
            np.savez(folder / f"client-{client:05d}" / f"block-{block}.npz", x=x, y=y)
    if test:
        (folder / "test").mkdir()
        for block in range(blocks):
            x, y = (np.concatenate(part) for part in zip(*data[block], strict=True))
            np.savez(folder / "test" / f"block-{block}.npz", x=x, y=y)
    shape = list(data[0][0][0].shape[1:])
    manifest = {"format": 1, "blocks": blocks, "classes": classes, "shape": shape, "clients": list(range(clients))}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def read_predictors(run: Path) -> list[dict[str, NDArray[np.float32]]]:
    """Return each block's arrays from a run's folder."""
    count = len(list((run / "predictors").glob("block-*.safetensors")))
    return [load_file(run / "predictors" / f"block-{block}.safetensors") for block in range(count)]


def read_metrics(run: Path, *, times: bool = False) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl, without times and identity unless asked: no two runs have the same."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    own = () if times else ("seconds", "run", "crc")
    return [{key: value for key, value in row.items() if key not in own} for row in rows]


@pytest.fixture(autouse=True)
def _logs_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let caplog hear every logger: a command that ran in this process before may have turned it to the console."""
    for name in ("perennial", "flwr"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "filters", [])


@pytest.fixture
def flower_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let messages be made outside a Flower run."""
    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 0)):
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture(scope="session")
def shared_grid() -> Iterator[RayGrid]:
    """One Ray with two workers for all tests in this process: each start takes seconds."""
    from perennial.simulation.cluster import connected
    from perennial.simulation.ray_grid import RayGrid

    ray = connected(verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.__enter__()
        # On a busy machine Ray may have started at its second attempt, and left the processes of the first one to the
        # garbage collector, which would warn in the middle of some test.
        gc.collect()
    grid = RayGrid(2)
    yield grid
    # Ray leaves its processes to the garbage collector while they still end, which warns.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grid.close()
        ray.__exit__(None, None, None)
        gc.collect()


Simulate = Callable[..., dict[str, Path]]


@pytest.fixture
def simulate(shared_grid: RayGrid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Run an experiment on the shared Ray; returns the runs' folders by name ('' for a single one)."""
    from perennial.simulation import cluster, experiment
    from perennial.simulation import passes as run
    from perennial.simulation import ray_grid as grid

    monkeypatch.setattr(cluster, "connected", lambda *, verbose: nullcontext(2))
    monkeypatch.setattr(grid, "RayGrid", lambda: shared_grid)
    monkeypatch.setattr(run, "closing", nullcontext)

    def simulated(output: str = "run", *, resume: bool = False, **keys: Any) -> dict[str, Path]:
        folder = tmp_path / output
        file = tmp_path / f"{output}.yaml"
        file.write_text(json.dumps({"output": folder, **keys}, default=str))
        paths = run.run_experiment(experiment.load(file), resume=resume, overwrite=False, verbose=False)
        return {"" if path == folder else path.name: path for path in paths}

    return simulated
