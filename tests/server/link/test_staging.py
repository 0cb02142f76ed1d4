"""What is staged of a user's own app for Flower's nodes, and what is left out."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from perennial.common.command.app_config import APP_RUN, AppConfig
from perennial.common.command.errors import InputError
from perennial.server.link import bundle
from tests.apps import numpy_app


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: an app, and much that is not of it."""
    numpy_app.write(tmp_path)
    others = (".venv/lib.py", "env/pyvenv.cfg", "env/lib.py", ".git/x.py", "runs/mine/config.yaml", "data.npz",
              "client/__pycache__/app.py", "state/run/config.yaml", "pyproject.toml", "client/set.yaml")  # fmt: skip
    for name in others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**changes: object) -> AppConfig:
    return AppConfig.from_mapping({**numpy_app.keys(output="runs/mine", **{"run-config": {"epochs": 2}}), **changes})


def test_the_bundle_has_the_user_s_files_and_no_others(here: Path) -> None:
    (here / "bundle.zip").write_bytes(bundle.bundled(config(), here / "state" / "app"))
    with ZipFile(here / "bundle.zip") as archive:
        names = {name for name in archive.namelist() if not name.startswith(("perennial/", ".info"))}
        project = tomllib.loads(archive.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert names == {*numpy_app.FILES, "common/task.py", "client/set.yaml", "pyproject.toml"}
    assert project["components"]["clientapp"] == numpy_app.APP
    assert project["config"]["epochs"] == 2
    assert set(project["config"]) == {"epochs", APP_RUN}


def test_a_node_that_gets_both_chains_in_one_message_is_given_what_answers_them(here: Path) -> None:
    bundle.stage(here / "state" / "app", config(**{"one-message": True}))
    project = tomllib.loads((here / "state" / "app" / "pyproject.toml").read_text())
    module, _, name = project["tool"]["flwr"]["app"]["components"]["clientapp"].partition(":")
    text = (here / "state" / "app" / f"{module}.py").read_text()
    assert f"{name} = own_app('{numpy_app.APP}')" in text


def test_a_folder_that_is_no_app_s_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MOST_FILES", 3)
    with pytest.raises(InputError, match="more than 3 files that may be of your app; start in its folder"):
        bundle.stage(here / "state" / "app", config())


def test_what_flower_cannot_bundle_is_said_in_one_line(here: Path) -> None:
    # Flower takes 10 MB; what is random cannot be compressed.
    (here / "large.json").write_bytes(random.Random(0).randbytes(12 * 2**20))
    with pytest.raises(InputError, match=r"Flower cannot bundle the app in .*maximum allowed size"):
        bundle.bundled(config(), here / "state" / "app")
