"""A run's folder: what it holds, and when it looks complete."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError
from perennial.common.wire.layout import Layout
from perennial.server.psgd import Predictors
from perennial.server.run.files import replace_file
from perennial.server.run.folder import Metrics, RunFolder

LAYOUT = Layout(("fc.weight", "fc.bias"), ((2, 2), (2,)))
CONFIG = RunConfig(blocks=2, model="linear")


def vector(value: float) -> Any:
    return np.full(6, value, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.start(CONFIG, LAYOUT, vector(7))
    return folder


def finish(folder: RunFolder, accuracy: list[float] | None = None) -> None:
    predictors = Predictors((vector(1), vector(2)), (4, 3))
    folder.write_predictors(CONFIG, schedule_of(CONFIG), LAYOUT, predictors, accuracy)


def test_a_started_folder_has_configuration_and_initial_model_and_is_not_complete(folder: RunFolder) -> None:
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == CONFIG.to_mapping()
    assert RunConfig.from_mapping(folder.config()) == CONFIG
    assert (load_file(folder.path / "initial.safetensors")["fc.weight"] == 7).all()
    assert folder.metrics.read_bytes() == b""
    assert not folder.is_complete()


def test_predictors_and_manifest_are_as_designed(folder: RunFolder) -> None:
    finish(folder, [0.5, 0.75])
    assert folder.is_complete()
    manifest = json.loads(folder.manifest.read_text())
    assert {key: manifest[key] for key in ("strategy", "blocks", "folded", "accuracy", "model")} == {
        "strategy": "mc-psgd", "blocks": ["0", "1"], "folded": [4, 3], "accuracy": [0.5, 0.75], "model": "linear",
    }  # fmt: skip
    assert manifest["schedule"]["rounds-per-block"] == 10
    for block, value in enumerate((1, 2)):
        path = folder.manifest.parent / f"block-{block}.safetensors"
        assert hashlib.sha256(path.read_bytes()).hexdigest() == manifest["sha256"][path.name]
        arrays = load_file(path)
        assert {name: array.shape for name, array in arrays.items()} == {"fc.weight": (2, 2), "fc.bias": (2,)}
        assert (arrays["fc.bias"] == value).all()


def test_starting_anew_takes_away_what_an_earlier_run_left(folder: RunFolder) -> None:
    finish(folder)
    folder.checkpoints.mkdir()
    (folder.checkpoints / "00000001.json").write_text("{}")
    folder.metrics.write_text("{}\n")
    folder.start(CONFIG, LAYOUT, vector(0))
    assert not folder.is_complete()
    assert not list(folder.manifest.parent.iterdir())
    assert not list(folder.checkpoints.iterdir())
    assert folder.metrics.read_bytes() == b""


@pytest.mark.parametrize("content", ["a: [", "5", "\x00"])
def test_an_unreadable_configuration_is_named(folder: RunFolder, content: str) -> None:
    (folder.path / "config.yaml").write_text(content)
    with pytest.raises(InputError, match=r"config\.yaml cannot be read"):
        folder.config()


def test_a_folder_without_configuration_has_none(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).config() == {}


def test_metrics_are_cut_back_to_what_the_checkpoint_knew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.append({"server-round": 1})
    position = metrics.position()
    metrics.sync()
    metrics.append({"server-round": 2})
    metrics.close()
    again = Metrics(path, position)
    again.append({"server-round": 2, "again": True})
    again.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"server-round": 1},
        {"server-round": 2, "again": True},
    ]


def test_each_row_is_on_disk_when_its_round_is_done(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append({"a": 1})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"a": 1}\n'
    metrics.close()


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    replace_file(tmp_path / "a", b"old")
    replace_file(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"new")]
