"""A run's folder: what it holds, and when it looks complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Slot
from perennial.common.wire.layout import Layout
from perennial.server.predict.publishing import Publication, model_bytes, publish, settle
from perennial.server.run.files import replace_file
from perennial.server.run.folder import RunFolder

LAYOUT = Layout(("fc.weight", "fc.bias"), ((2, 2), (2,)))
CONFIG = RunConfig(blocks=2, model="linear")


def vector(value: float) -> Any:
    return np.full(6, value, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.start(CONFIG, model_bytes(LAYOUT.unflatten(vector(7)), "the initial model"))
    return folder


def finish(folder: RunFolder) -> None:
    models = tuple(LAYOUT.unflatten(vector(value)) for value in (1, 2))
    slot, names = Slot(7, 1, 1, 0), ("0", "1")
    publish(folder.path, Publication("5f0c", slot, "mc-psgd", names, models, (4, 3), {}, CONFIG.to_mapping()))
    settle(folder.path)


def test_a_started_folder_has_configuration_and_initial_model_and_is_not_complete(folder: RunFolder) -> None:
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == CONFIG.to_mapping()
    assert RunConfig.from_mapping(folder.config()) == CONFIG
    assert (load_file(folder.path / "initial.safetensors")["fc.weight"] == 7).all()
    assert not folder.is_complete()


def test_starting_anew_takes_away_what_an_earlier_run_left(folder: RunFolder) -> None:
    finish(folder)
    folder.checkpoints.mkdir()
    (folder.checkpoints / "00000001.json").write_text("{}")
    folder.metrics.write_text("{}\n")
    folder.start(CONFIG, b"")
    assert not folder.is_complete()
    assert not list(folder.manifest.parent.iterdir())
    assert not list(folder.checkpoints.iterdir())
    assert not folder.metrics.exists()
    assert not (folder.path / "versions").exists()


def test_predictors_that_are_not_as_they_were_written_make_no_whole_run(
    folder: RunFolder, warned: pytest.LogCaptureFixture
) -> None:
    finish(folder)
    assert folder.is_whole()
    path = folder.path / "predictors" / "block-1.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    assert not folder.is_whole()
    assert "block-1.safetensors: its checksum is not the manifest's; the predictors are written again" in warned.text


@pytest.mark.parametrize("content", ["a: [", "5", "\x00"])
def test_an_unreadable_configuration_is_named(folder: RunFolder, content: str) -> None:
    (folder.path / "config.yaml").write_text(content)
    with pytest.raises(InputError, match=r"config\.yaml cannot be read"):
        folder.config()


def test_a_folder_without_configuration_has_none(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).config() == {}


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"old")
    replace_file(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"new")]
