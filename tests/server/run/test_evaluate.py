"""Every predictor on its own block's test set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import RunError
from perennial.common.data import manifest
from perennial.common.data.datasets import Shards
from perennial.common.data.examples import ArrayType, Signature
from perennial.common.data.shards import ShardFolder
from perennial.common.data.source import NoData, open_shards
from perennial.common.task import models
from perennial.common.task.ready import build, regression
from perennial.common.wire.arrays import encode
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout
from perennial.server.run.evaluate import Evaluator, TorchRight
from tests.conftest import make_data, write_folder


def linear(vector: Vector, classes: int) -> ArrayRecord:
    features = (len(vector) - classes) // classes
    return encode(vector, Layout(("fc.weight", "fc.bias"), ((classes, features), (classes,))))


def always(label: int, size: int = 21, classes: int = 3) -> ArrayRecord:
    """A linear model that answers ``label`` whatever it sees: (2, 3) features, 3 classes."""
    vector = np.zeros(size, np.float32)
    vector[size - classes + label] = 1
    return linear(vector, classes)


def an_evaluator(shards: Shards) -> Evaluator:
    network = models.build("linear", shards.shape, shards.classes)
    layout = Layout.of(models.arrays_of(network))
    return Evaluator(TorchRight(network, layout), shards, layout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", make_data(2, 3))


def test_accuracy_is_the_share_of_right_answers_in_the_blocks_own_test_set(folder: Path) -> None:
    data = make_data(2, 3)
    labels = [np.concatenate([y for _, y in block]) for block in data]
    evaluator = an_evaluator(ShardFolder(folder))
    for label in range(3):
        predictors = [always(label), always((label + 1) % 3)]
        expected = [float((labels[0] == label).mean()), float((labels[1] == (label + 1) % 3).mean())]
        assert evaluator.accuracies([predictors]) == [pytest.approx(expected)]


def test_one_model_for_all_blocks_is_judged_on_each(folder: Path) -> None:
    labels = [np.concatenate([y for _, y in block]) for block in make_data(2, 3)]
    one = always(1)
    found = an_evaluator(ShardFolder(folder)).accuracies([[one, one]])
    assert found == [pytest.approx([float((y == 1).mean()) for y in labels])]


def test_each_reader_gets_its_own_accuracies_as_often_as_it_asks(folder: Path) -> None:
    evaluator = an_evaluator(ShardFolder(folder))
    one, other = ([always(label)] * 2 for label in (0, 1))
    mixed = [one[0], other[1]]
    both = evaluator.accuracies([one, other, mixed])
    assert both is not None
    assert both[0] != both[1]
    assert both[2] == [both[0][0], both[1][1]]
    assert evaluator.accuracies([other, one]) == [both[1], both[0]]
    assert evaluator.accuracies([[always(0)] * 2]) == [both[0]]


def test_blocks_that_call_the_same_images_by_other_labels_are_judged_by_their_own() -> None:
    shards = open_shards(RunConfig(blocks=2, labels_per_block=10, clients=5, label_shift=3))
    zero, three = (always(label, 64 * 10 + 10, 10) for label in (0, 3))
    (found,) = an_evaluator(shards).accuracies([[zero, zero]]) or []
    (turned,) = an_evaluator(shards).accuracies([[zero, three]]) or []
    assert found[0] != found[1]
    assert turned[0] == turned[1] == found[0]


def test_overlapping_test_sets_of_a_cut_data_set_are_judged_alike() -> None:
    shards = open_shards(RunConfig(clients=5))
    evaluator = an_evaluator(shards)
    size = 64 * 10 + 10
    found = evaluator.accuracies([[always(3, size, 10)] * 5])
    expected = []
    for block in range(5):
        test = shards.test(block)
        assert test is not None
        expected.append(float((test.y[test.rows] == 3).mean()))
    assert found == [pytest.approx(expected)]
    assert expected[2] == 0.0


def test_batches_judged_at_once_do_not_see_each_others_models() -> None:
    """Threads share the evaluator, and a call puts its model into a module."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4000, 1, 16, 16)).astype(np.float32), rng.integers(0, 10, 4000)
    network = models.build("cnn", (1, 16, 16), 10)
    layout = Layout.of(models.arrays_of(network))
    right = TorchRight(network, layout)
    some = [rng.normal(size=layout.size, scale=0.2).astype(np.float32) for _ in range(8)]
    rows = [np.arange(start, start + 100) for start in range(0, 4000, 100)]
    alone = [right(some[at % 8], (x,), y, batch) for at, batch in enumerate(rows)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda at: right(some[at % 8], (x,), y, rows[at]), range(len(rows))))
    assert all((one == other).all() for one, other in zip(alone, together, strict=True))


def test_another_task_is_judged_by_its_own_score(tmp_path: Path) -> None:
    manifest.write(tmp_path, Signature((ArrayType(("float32",), (2,)),), ArrayType(("float32",))), 1, [])
    (tmp_path / "test").mkdir()
    x, y = np.array([[1, 0], [0, 2], [1, 1]], np.float32), np.array([1, 5, -3], np.float32)
    np.savez(tmp_path / "test" / "block-0.npz", x=x, y=y)
    shards = ShardFolder(tmp_path)
    network = build(regression, shards.signature, "linear")
    layout = Layout.of(models.arrays_of(network))
    evaluator = Evaluator(TorchRight(network, layout, regression), shards, layout)
    # Answers 1, 4 and 3: off by 0, 1 and 6.
    model = np.array([1, 2, 0], np.float32)
    assert evaluator.accuracies([[linear(model, 1)]]) == [[pytest.approx(7 / 3)]]
    with pytest.raises(RunError, match="the score of the predictor of block 0 is inf; lower the learning rate"):
        evaluator.accuracies([[linear(model * np.float32(1e38), 1)]])


def test_a_block_without_test_set_gives_no_accuracies_and_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "test" / "block-1.npz").unlink()
    assert an_evaluator(ShardFolder(folder)).accuracies([[always(0)] * 2]) is None
    assert [record.message for record in caplog.records] == [
        "nothing is evaluated: block 1 has no test set, others have one"
    ]
    caplog.clear()
    nothing = an_evaluator(NoData((2, 3), 3, 2))
    assert nothing.accuracies([[always(0)] * 2]) is None
    assert caplog.records == []
