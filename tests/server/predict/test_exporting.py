"""Exported predictors predict as the run does, and one that does not is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from perennial.common.command.errors import RunError
from perennial.common.data.examples import ArrayType, Signature
from perennial.common.task import models, ready
from perennial.server.predict import exporting
from perennial.server.predict.exporting import export_one
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.predictor_network import PredictorNetwork
from perennial.server.predict.publishing import ModelSpec, publish
from tests.server.predict.published import publication

PIXELS = (3, 16, 16)
TASKS = {
    "classification": lambda shape: Signature.labelled(shape, 5),
    "binary": lambda shape: Signature((ArrayType(("float32",), shape),), ArrayType(("float32",))),
    "regression": lambda shape: Signature((ArrayType(("float32",), shape),), ArrayType(("float32",), (2,))),
}


def published(folder: Path, task: str, model: str, signature: Signature) -> Any:
    network = ready.build(ready.open_task(task), signature, model, seed=3)
    arrays = {name: array + np.float32(0.01) for name, array in models.arrays_of(network).items()}
    publish(folder, publication(1, predictors=(arrays, arrays), model=ModelSpec.of(task, model, signature)))
    return load_predictor(folder, block="night")


def outputs(kind: str, path: Path, x: Any) -> Any:
    """Return what a program that knows nothing of the run makes of a file."""
    if kind == "torch-export":
        return torch.export.load(path).module()(torch.from_numpy(x)).detach().numpy()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["block"] == "night"
    return session.run(["output"], {"x": x})[0]


@pytest.mark.parametrize("kind", ["torch-export", "onnx"])
@pytest.mark.parametrize(
    ("task", "model"),
    [pytest.param(task, model, marks=[] if (task, model) == ("regression", "cnn") else pytest.mark.slow)
     for task in TASKS for model in models.NAMED],
)  # fmt: skip
def test_a_file_predicts_as_the_run_does(tmp_path: Path, kind: str, task: str, model: str) -> None:
    predictor = published(tmp_path, task, model, TASKS[task](PIXELS))
    export_one(predictor, kind, tmp_path / "exported")
    x = np.random.default_rng(0).normal(size=(9, *PIXELS)).astype(np.float32)
    expected = PredictorNetwork.of(predictor).outputs((x,))[0]
    assert np.abs(outputs(kind, tmp_path / "exported", x) - expected).max() < 1e-5


def test_pixels_go_into_the_file_as_the_network_takes_them(tmp_path: Path) -> None:
    predictor = published(tmp_path, "classification", "linear", Signature.labelled((4,), 3, ("uint8",)))
    export_one(predictor, "torch-export", tmp_path / "exported")
    x = np.arange(8, dtype=np.uint8).reshape(2, 4) * 31
    expected = PredictorNetwork.of(predictor).outputs((x,))[0]
    scaled = (x.astype(np.float32) / 255 - 0.5) / 0.5
    assert np.abs(outputs("torch-export", tmp_path / "exported", scaled) - expected).max() < 1e-5


def test_a_file_that_predicts_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = published(tmp_path, "classification", "linear", Signature.labelled((4,), 3))
    read = exporting._from_torch
    monkeypatch.setattr(exporting, "_from_torch", lambda content: lambda x: [one + 1e-3 for one in read(content)(x)])
    with pytest.raises(
        RunError, match=r"block night as torch-export predicts other values than the run: they differ by 1\.0e-03"
    ):
        export_one(predictor, "torch-export", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()
