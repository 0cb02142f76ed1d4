"""A user's own app by `flower-simulation run`: against NumPy, in a folder whose packages have our folders' names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from tests.apps import numpy_app
from tests.conftest import read_metrics
from tests.library_reference import Run, mc_psgd_exponential, mm_psgd_mean
from tests.processes import COMMAND, environment
from tests.server.strategies.quickstart import STEPS, load_data

CLIENTS, INITIAL = 6, np.array([0.1, 0.2, 0.3, 0.0])
DATA = [[load_data(client, block) for client in range(CLIENTS)] for block in range(2)]


def simulate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [COMMAND, "run", "mine.yaml", *arguments]
    return subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = numpy_app.write(tmp_path_factory.mktemp("mine"))
    runs = [
        {"strategy": "mm-psgd", "averaging": "mean"},
        {"strategy": "mc-psgd", "one-message": [False, True]},
        {"strategy": "fedavg"},
    ]
    keys = numpy_app.keys(clients=CLIENTS, blocks=["day", "night"], runs=runs)
    (made / "mine.yaml").write_text(yaml.safe_dump(keys))
    done = simulate(made)
    assert done.returncode == 0, done.stderr
    return made / "runs" / "mine"


def run_of(folder: Path, strategy: str, **keys: object) -> Path:
    for path in folder.glob("*/config.yaml"):
        config = yaml.safe_load(path.read_text())
        if config["strategy"] == strategy and keys.items() <= config.items():
            return path.parent
    raise AssertionError(f"no run of {strategy} in {os.listdir(folder)}")


def setting(run: Path) -> Run:
    """Return the setting of a run in which all clients took part in every round."""
    blocks = [row["block"] for row in read_metrics(run)]
    assert blocks == [0, 0, 1, 1, 0, 0, 1, 1]
    cohorts = [list(range(CLIENTS))] * len(blocks)
    return Run(DATA, blocks, cohorts, STEPS, lr=numpy_app.LR, lr_separate=numpy_app.LR_SEPARATE)


def agrees(run: Path, expected: dict[int, object]) -> None:
    for block in range(2):
        found = load_file(run / "predictors" / f"block-{block}.safetensors")
        assert np.abs(np.append(found["fc.weight"], found["fc.bias"]) - expected[block]).max() < 1e-5


def test_mm_psgd_agrees_with_numpy(folder: Path) -> None:
    run = run_of(folder, "mm-psgd")
    agrees(run, mm_psgd_mean(setting(run), INITIAL))


@pytest.mark.parametrize("one_message", [False, True])
def test_mc_psgd_agrees_with_numpy_in_two_messages_and_in_one(folder: Path, one_message: bool) -> None:
    run = run_of(folder, "mc-psgd", **{"one-message": one_message})
    expected, chosen = mc_psgd_exponential(setting(run), INITIAL, 0.5)
    assert [row["chosen"] for row in read_metrics(run)] == chosen
    agrees(run, expected)


def test_the_report_and_the_manifest_name_blocks_and_strategies(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert all(word in page for word in ("fedavg", "mm-psgd", "mc-psgd", "day", "night"))
    manifest = json.loads((run_of(folder, "fedavg") / "predictors" / "manifest.json").read_text())
    assert (manifest["strategy"], manifest["blocks"]) == ("fedavg", ["day", "night"])


def test_runs_are_not_lost_and_those_that_are_done_are_left_alone(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")}
    assert len(before) == 4
    there = folder.parents[1]
    refused = simulate(there)
    assert refused.returncode == 2
    assert "holds a run of 8 rounds; --resume goes on with it, --overwrite starts anew" in refused.stderr
    assert simulate(there, "--resume").returncode == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/metrics.jsonl")} == before


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("app=server.model:initial", "must be a flwr.clientapp.ClientApp"),
        ("initial=client.app:app", "must be an ArrayRecord, or a function without arguments"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line_before_ray_starts(folder: Path, keys: str, message: str) -> None:
    done = simulate(folder.parents[1], "--set", keys, "--overwrite")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
