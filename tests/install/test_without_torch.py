"""Users whose apps need no torch: a client on NumPy and one on scikit-learn, simulated and deployed without it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from benchmarks.app_fleet import AppFleet
from tests.apps import numpy_app, sklearn_app
from tests.conftest import read_metrics
from tests.install import environments
from tests.install.environments import Environment, variables

pytestmark = pytest.mark.slow
NODES = 3


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'perennial-fl[ray]' scikit-learn`."""
    made = environments.install(wheel, tmp_path_factory.mktemp("bare"))
    return environments.lend_dependencies(made, "flwr[simulation]", "matplotlib", "scikit-learn")


@pytest.fixture(params=["numpy", "scikit-learn"])
def mine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """The folder of an app, and the keys of a run of it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    if request.param == "numpy":
        return numpy_app.write(folder), numpy_app.keys()
    shutil.copy(sklearn_app.__file__, folder / "classifier.py")
    return folder, numpy_app.keys(app="classifier:app", initial="classifier:initial")


def test_there_is_no_torch(bare: Environment, tmp_path: Path) -> None:
    code = "from importlib.util import find_spec; print(*(find_spec(m) is None for m in ('torch', 'ray', 'sklearn')))"
    assert bare.run("python", "-c", code, cwd=tmp_path).stdout == "True False False\n"


def test_an_app_is_simulated_without_torch(bare: Environment, mine: tuple[Path, dict[str, object]]) -> None:
    folder, keys = mine
    (folder / "mine.yaml").write_text(yaml.safe_dump({**keys, "clients": NODES, "strategy": ["mm-psgd", "mc-psgd"]}))
    done = bare.run("flower-simulation", "run", "mine.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    check(folder / "runs" / "mine" / "mc-psgd")
    assert (folder / "runs" / "mine" / "report.html").is_file()


def test_an_app_is_deployed_without_torch(
    bare: Environment, mine: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    folder, keys = mine
    fleet = AppFleet(folder, tmp_path, NODES, bare.folder / "bin", variables())
    fleet.prepare()
    with (
        fleet.served({**keys, "nodes": NODES}) as (server, port),
        fleet.connected("quick", port, str(keys["app"])),
    ):
        assert server.wait(280) == 0, (tmp_path / "server.log").read_text()
    check(fleet.run)


def check(run: Path) -> None:
    """Every round was done by all, and each block's predictor judges its clients' data better and better."""
    rows = read_metrics(run)
    assert [row["clients-answered"] for row in rows] == [NODES] * 8
    for block in range(2):
        losses = [row["evaluate-metrics"]["eval_loss"] for row in rows if row["block"] == block]
        assert losses[-1] < losses[0]
