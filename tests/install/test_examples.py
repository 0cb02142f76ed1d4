"""The apps of examples/: each runs by `flwr run` and by `flower-simulation`, with settings that cost little."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import read_metrics
from tests.install.environments import ROOT
from tests.local_superlink import flwr_run, local_superlink
from tests.processes import run_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Of each: its keys for one cycle and a bit, and what its last lines say; all on three nodes.
SHORT: dict[str, object] = {"num-server-rounds": 3, "rounds-per-block": 1}
SHORT_PAPER: dict[str, object] = {
    "algorithm": "mc-psgd", "num-clients": 3, "num-blocks": 2, "labels-per-block": 5, "num-cycles": 2,
    "rounds-per-block": 1, "evaluate-every": 1,
}  # fmt: skip
SCORE = r"predictor \d+\.\d %"
EXAMPLES = {
    "pytorch": (SHORT, rf"day: {SCORE}.*\n.*night: {SCORE}"),
    "sklearn": (SHORT, rf"weekday: {SCORE}(?s:.*)weekend: {SCORE}"),
    "blockcyclic": (SHORT_PAPER, r"FedAvg: best .*\n.*MC-PSGD: best \d+\.\d %, mean of the last cycle"),
}


@pytest.fixture
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of an example, so that nothing is written into the checkout."""
    return Path(shutil.copytree(ROOT / "examples" / request.param, tmp_path / request.param))


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("stock")
    (folder / "neutral").mkdir()
    with local_superlink(folder, folder / "neutral") as env:
        yield env


def test_every_example_is_here() -> None:
    assert set(EXAMPLES) == {path.parent.name for path in (ROOT / "examples").glob("*/pyproject.toml")}
    listed = (ROOT / "examples" / "README.md").read_text()
    assert [name for name in EXAMPLES if f"]({name})" not in listed] == []


@pytest.mark.parametrize(("app", "name"), [(name, name) for name in EXAMPLES], indirect=["app"])
def test_an_example_runs_by_flwr_run(app: Path, name: str, stock: dict[str, str], tmp_path: Path) -> None:
    keys, told = EXAMPLES[name]
    done = flwr_run(app, keys, 3, cwd=tmp_path, env=stock)
    assert re.search(told, done.stdout + done.stderr), done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(("app", "name"), [(name, name) for name in EXAMPLES], indirect=["app"])
def test_an_example_runs_by_flower_simulation(app: Path, name: str) -> None:
    text = yaml.safe_load((app / "cyclic.yaml").read_text())
    done = run_command("run", "cyclic.yaml", "--set", "cycles=1", "--set", "rounds-per-block=1", cwd=app)
    assert done.returncode == 0, done.stderr
    for strategy in text["strategy"]:
        rows = read_metrics(app / "runs" / "cyclic" / strategy)
        assert [set(row["answered"]) for row in rows] == [set(row["nodes"]) for row in rows]
    assert (app / "runs" / "cyclic" / "report.html").is_file()


@pytest.mark.parametrize("module", ["client_app", "dataset", "model", "server_app", "strategy", "utils"])
def test_the_baseline_has_the_modules_that_flowers_repository_asks_for(module: str) -> None:
    baseline = ROOT / "examples" / "blockcyclic"
    assert (baseline / "blockcyclic" / f"{module}.py").is_file()
    assert sorted((baseline / "conf").glob("*.toml"))
    front = yaml.safe_load((baseline / "README.md").read_text().split("---")[1])
    assert set(front) == {"title", "url", "labels", "dataset"}
    assert 4 <= len(front["labels"]) <= 10
