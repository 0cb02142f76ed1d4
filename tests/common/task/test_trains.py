"""Each ready task, each kind of layer and the tasks of docs/tasks.md train: a whole run, with the real ClientApp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data import shards
from perennial.common.data.row_shards import RowShards
from perennial.server.report.reading import read
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Pass, Run, prepare
from perennial.server.run.training import train
from tests import documented, layers
from tests.conftest import read_metrics, read_predictors
from tests.server.run.test_training import real_nodes

pytestmark = pytest.mark.usefixtures("flower_identity")

KEYS: dict[str, Any] = {"cycles": 2, "rounds_per_block": 2, "local_iterations": 4, "batch_size": 4, "eval_every": 4}


def run_of(folder: Path, **keys: Any) -> Pass:
    made = prepare([Run(RunConfig(**{**KEYS, **keys}), RunFolder(folder))])
    train(made, real_nodes(made), nodes=2)
    return made


def means(folder: Path) -> list[float]:
    return [float(value) for value in read(folder).evaluated.mean_accuracy]


def write(folder: Path, x: Any, y: Any) -> str:
    """Write 96 examples as shards of two blocks and four clients, and a test set of each block."""
    rows = np.arange(96)
    cut = RowShards.of((x,), y, client=rows % 4, block=rows // 48, test=rows // 4 % 4 == 0)
    shards.write(folder, cut, cut.clients)
    return str(folder)


@pytest.mark.parametrize("task", ["classification", "binary", "regression"])
def test_each_ready_task_learns(tmp_path: Path, task: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((96, 3), np.float32)
    side = np.array(x.sum(1) > 0, np.int64)
    data = write(tmp_path / "data", x, x @ np.ones((3, 2), np.float32) if task == "regression" else side)
    keys = {"task": task, "data": data, "model": "linear", "lr_mixed": 0.3, "strategy": "mm-psgd"}
    run_of(tmp_path / "run", engine="auto", **keys)
    (first, last), score = means(tmp_path / "run"), read(tmp_path / "run").scale
    assert last < first if task == "regression" else last > 0.8
    assert score.name == ("absolute error" if task == "regression" else "accuracy")


@pytest.mark.parametrize("kind", layers.KINDS)
def test_each_kind_of_layer_trains(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    data = write(tmp_path / "data", layers.inputs(kind, rng, 96), rng.integers(0, layers.CLASSES, 96))
    run_of(tmp_path / "run", data=data, model=f"tests.layers:{kind}", strategy="mc-psgd", cycles=1)
    models = read_predictors(tmp_path / "run")
    assert all(np.isfinite(array).all() for model in models for array in model.values())
    if kind == "batch_norm":
        counts = [model["1.num_batches_tracked"] for model in models]
        assert all(count.dtype == np.int64 and 4 <= count <= 16 for count in counts)


@pytest.mark.parametrize(("task", "data", "lr"), [("rides", "Rides", 0.05), ("melodies", "Melodies", 1.0)])
def test_the_tasks_of_the_document_learn(tmp_path: Path, task: str, data: str, lr: float) -> None:
    run_of(
        tmp_path / "run",
        task=f"tests.documented:{task}",
        data=f"tests.documented:{data}",
        strategy="mm-psgd",
        lr_mixed=lr,
        batch_size=16,
        cycles=4,
    )
    found, better = means(tmp_path / "run"), read(tmp_path / "run").scale.better
    assert found[-1] < found[0] if better == "lower" else found[-1] > found[0]
    assert ("mean-score" in read_metrics(tmp_path / "run")[-1]) == (task == "rides")


def test_each_task_of_the_document_is_short() -> None:
    assert len(documented.CODE) == 3
    assert all(len(code.splitlines()) < 30 for code in documented.CODE)


@pytest.mark.parametrize(
    ("task", "model", "message"),
    [
        ("binary", "auto", "task binary needs a y of 0 or 1 for each example; the data has .* in 3 classes"),
        ("tests.documented:rides", "auto", "rides does not take examples of"),
        ("tests.documented:rides", "mlp", "brings its own network; leave model out, got 'mlp'"),
        ("classification", "tests.layers:gru", "model 'tests.layers:gru' does not take data of shape"),
    ],
)
def test_a_task_that_does_not_fit_the_data_is_one_line_and_writes_nothing(
    tmp_path: Path, task: str, model: str, message: str
) -> None:
    rng = np.random.default_rng(0)
    data = write(tmp_path / "data", layers.inputs("gelu", rng, 96), np.arange(96) % 3)
    with pytest.raises(InputError, match=message):
        run_of(tmp_path / "run", task=task, model=model, data=data)
    assert not (tmp_path / "run").exists()
