"""What Flower runs: the bundle of this repo, and the app that `--runtime stock` and `--attach` submit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest

from perennial.common.command import flower
from perennial.common.command.config import RunConfig
from perennial.server.link import bundle
from tests.install.environments import ROOT, Environment, variables

pytestmark = pytest.mark.slow
# Flower puts an app's folder first on the path, and loads its two components.
LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import perennial.client_app, perennial.server_app
import perennial.client.app, perennial.server.app
assert perennial.server_app.app is perennial.server.app.app
assert perennial.client_app.app is perennial.client.app.app
print(*{module.__file__ for name, module in sys.modules.items() if name.startswith("perennial")}, sep="\\n")
"""


def build(app: Path, folder: Path) -> Path:
    """Return what `flwr build` puts into the bundle of an app, unpacked."""
    folder.mkdir()
    line = [flower.command("flwr"), "build", "--app", str(app)]
    env = {**flower.environment(folder / "home"), **variables()}
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=200)
    bundles = list(folder.glob("*.fab"))
    assert len(bundles) == 1, done.stdout + done.stderr
    with ZipFile(bundles[0]) as archive:
        archive.extractall(folder / "bundle")
    return folder / "bundle"


def stage_here(app: Path) -> None:
    bundle.stage(app, RunConfig(output="there"))


def stage_from_the_wheel(app: Path, full: Environment) -> None:
    code = (
        "import sys; from pathlib import Path; from perennial.common.command.config import RunConfig\n"
        "from perennial.server.link import bundle\n"
        "bundle.stage(Path(sys.argv[1]), RunConfig(output='there'))"
    )
    done = full.run("python", "-c", code, app, cwd=app.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", ["repo", "wheel"])
def test_both_components_load_from_the_bundle_alone(source: str, full: Environment, tmp_path: Path) -> None:
    app = ROOT if source == "repo" else tmp_path / "app"
    if source == "wheel":
        stage_from_the_wheel(app, full)
    bundle = build(app, tmp_path / "built")
    done = full.run("python", "-c", LOAD, bundle, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = [Path(line) for line in done.stdout.splitlines()]
    assert len(loaded) > 20
    # Of the package that is installed in that environment, nothing.
    assert all(path.is_relative_to(bundle) for path in loaded)


def test_the_app_of_a_run_is_the_same_from_the_checkout_and_from_the_wheel(full: Environment, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    stage_here(tmp_path / "one" / "app")
    stage_from_the_wheel(tmp_path / "other" / "app", full)
    assert content(tmp_path / "one" / "app") == content(tmp_path / "other" / "app")


def content(app: Path) -> dict[Path, bytes]:
    # Where the output lies is the one thing that differs.
    files = [path for path in app.rglob("*") if path.is_file() and path.name != "pyproject.toml"]
    assert files
    return {path.relative_to(app): path.read_bytes() for path in files}
