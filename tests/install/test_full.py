"""`pip install 'perennial-fl[simulation]'`: the demo runs, also for those whose project has our folders' names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.processes import running, wait_until
from tests.conftest import read_metrics, read_predictors
from tests.install.environments import ROOMS, Environment, variables

pytestmark = pytest.mark.slow
# A model of the project's own, which needs a package of the project's own.
MODEL = """
from torch import nn

from common.layers import hidden


def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], hidden), nn.Linear(hidden, classes))
"""
HIDDEN = 3
KEYS = {"blocks": 2, "labels-per-block": 5, "clients": 2, "cycles": 1, "rounds-per-block": 1, "strategy": "mc-psgd"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that has packages ``client``, ``server``, ``common`` and ``simulation``."""
    for name in ROOMS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "common" / "layers.py").write_text(f"hidden = {HIDDEN}\n")
    (tmp_path / "models.py").write_text(MODEL)
    return tmp_path


def hidden_sizes(run: Path) -> set[int]:
    """Return how many numbers go between the two layers of each block's model."""
    return {array["1.bias"].shape[0] for array in read_predictors(run)}


def test_the_wheel_runs_the_demo_that_it_holds(full: Environment, tmp_path: Path) -> None:
    code = "from importlib import resources; print(resources.files('perennial.simulation') / 'experiments/demo.yaml')"
    demo = Path(full.run("python", "-c", code, cwd=tmp_path).stdout.strip())
    assert demo.is_relative_to(full.folder)
    done = full.run("flower-simulation", "run", demo, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
    assert {len(read_metrics(tmp_path / "runs" / "demo" / name)) for name in ("fedavg", "mm-psgd", "mc-psgd")} == {250}


def test_a_project_with_packages_of_our_folders_names_simulates(full: Environment, project: Path) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in {**KEYS, "model": "models:net"}.items())
    (project / "experiment.yaml").write_text(text)
    done = full.run("flower-simulation", "run", "experiment.yaml", cwd=project)
    assert done.returncode == 0, done.stderr
    assert hidden_sizes(project / "runs" / "experiment") == {HIDDEN}


def test_a_project_with_packages_of_our_folders_names_deploys(full: Environment, project: Path) -> None:
    cut = [part for key in ("blocks", "labels-per-block", "clients") for part in (f"--{key}", str(KEYS[key]))]
    assert full.run("flower-simulation", "shards", "shards", *cut, cwd=project).returncode == 0
    settings = [part for key, value in KEYS.items() for part in (f"--{key}", str(value))]
    serve = [full.command("flower-server"), "--insecure", "--port", "0", "--data", "shards", "--state-dir", "state"]
    said = project / "server.log"
    with running([*serve, *settings], said, variables()) as server:
        wait_until(lambda: "listening on" in said.read_text() or server.poll() is not None, 100, "the server")
        port = re.search(r"listening on 127\.0\.0\.1:(\d+)", said.read_text())
        assert port, said.read_text()
        train = [full.command("flower-client"), "--insecure", "--server", f"127.0.0.1:{port[1]}", "--data", "shards"]
        with running(train, project / "client.log", variables()):
            assert server.wait(100) == 0, said.read_text() + (project / "client.log").read_text()
    assert [row["server-round"] for row in read_metrics(project / "state" / "run")] == [1, 2]
