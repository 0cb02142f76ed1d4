"""Tasks: the ready ones, those of a user's own, and what does not fit together."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from perennial.common.command.errors import InputError
from perennial.common.data.examples import ArrayType, Signature
from perennial.common.task import ready
from perennial.common.task.learning_task import Score, Task, collate
from perennial.common.task.ready import binary, build, classification, model_for, open_task, regression

NUMBER = ArrayType(("float32",))
VECTOR = ArrayType(("float32",), (4,))
OUTPUTS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]])


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Return a way to give a task a name that the configuration could hold."""

    def named(task: Any) -> str:
        module = types.ModuleType("someones_tasks")
        module.mine = task  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "someones_tasks", module)
        return "someones_tasks:mine"

    return named


def test_classification_is_the_default_and_is_judged_by_accuracy() -> None:
    labels = torch.tensor([0, 1])
    assert classification.score.each(OUTPUTS, labels).tolist() == [1, 0]
    assert (classification.score.name, classification.score.better) == ("accuracy", "higher")
    expected = [np.log(1 + np.exp(-1) + np.exp(-2)), np.log(1 + np.exp(-1) + np.exp(2))]
    assert classification.loss(OUTPUTS, labels).tolist() == pytest.approx(expected, abs=1e-6)


def test_binary_answers_by_the_sign_of_its_one_output() -> None:
    outputs, answers = torch.tensor([[3.0], [-3.0], [2.0]]), torch.tensor([1.0, 0.0, 0.0])
    assert binary.score.each(outputs, answers).tolist() == [1, 1, 0]
    assert binary.loss(outputs, answers)[0].item() == pytest.approx(np.log(1 + np.exp(-3)), abs=1e-6)
    assert binary.loss(outputs, answers).shape == (3,)


def test_regression_takes_numbers_and_vectors() -> None:
    assert regression.loss(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 0.5])).tolist() == [4, 0.25]
    vectors = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    assert regression.loss(vectors, torch.tensor([[0.0, 0.0], [0.0, 4.0]])).tolist() == [2.5, 8]
    assert regression.score.each(vectors, torch.tensor([[0.0, 0.0], [0.0, 4.0]])).tolist() == [1.5, 2]
    assert regression.score.better == "lower"


@pytest.mark.parametrize(
    ("task", "y", "classes", "outputs"),
    [
        (classification, ArrayType(("int64",)), 7, 7),
        (binary, ArrayType(("int64",)), 2, 1),
        (binary, ArrayType(("bool",)), 0, 1),
        (binary, NUMBER, 0, 1),
        (regression, NUMBER, 0, 1),
        (regression, ArrayType(("int64",)), 0, 1),
        (regression, ArrayType(("float32",), (3, 2)), 0, 6),
    ],
)
def test_a_ready_task_takes_its_kind_of_target(task: Task, y: ArrayType, classes: int, outputs: int) -> None:
    network = build(task, Signature((VECTOR,), y, classes), "linear")
    assert network(torch.zeros(5, 4)).shape == (5, outputs)


@pytest.mark.parametrize(
    ("task", "y", "classes", "message"),
    [
        (classification, NUMBER, 0, "task classification needs labels, .* the data has x float32 4, y float32"),
        (classification, None, 0, "task classification needs labels, .* no y"),
        (classification, ArrayType(("int64",), (2,)), 0, "task classification needs labels"),
        (binary, ArrayType(("int64",)), 3, "task binary needs a y of 0 or 1 for each example; .* y in 3 classes"),
        (binary, None, 0, "task binary needs a y of 0 or 1"),
        (binary, VECTOR, 0, "task binary needs a y of 0 or 1"),
        (regression, None, 0, "task regression needs a y of one or more numbers; .* no y"),
    ],
)
def test_targets_of_the_wrong_kind_are_refused(task: Task, y: ArrayType | None, classes: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(task, Signature((VECTOR,), y, classes), "linear")


def test_collating_makes_pixels_tokens_and_numbers() -> None:
    x = (
        np.array([[0, 255]], np.uint8),
        np.array([[70_000]], np.uint32),
        np.array([[True, False]]),
        np.array([[0.1]], np.float64),
    )
    (pixels, tokens, flags, numbers), target = collate(x, np.array([3], np.int16))
    assert pixels.tolist() == [[-1, 1]]
    assert (tokens.dtype, tokens.tolist()) == (torch.int64, [[70_000]])
    assert (flags.dtype, flags.tolist()) == (torch.float32, [[1, 0]])
    assert numbers.dtype == torch.float32
    assert target is not None
    assert target.dtype == torch.int64
    assert collate(x, None)[1] is None


def test_a_task_of_ones_own_is_found_by_its_name(tasks: Callable[[Any], str]) -> None:
    mine = replace(regression, network=lambda signature: nn.Linear(4, 1))
    found = open_task(tasks(mine))
    assert (found.network, found.name) == (mine.network, "someones_tasks:mine")
    assert open_task("binary") is binary


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ranking", "task must be one of classification, binary, regression or package.module:name, got 'ranking'"),
        ("no.such.module:task", "task 'no.such.module:task' cannot be imported.*is its package installed here"),
        ("json:dumps", "task 'json:dumps' must be a perennial Task, got function"),
    ],
)
def test_a_task_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_task(name)


SIGNATURE = Signature((VECTOR,), NUMBER)


def with_network(**changes: Any) -> Task:
    parts: dict[str, Any] = {"network": lambda signature: nn.Linear(4, 1), "name": "mine", **changes}
    return replace(regression, **parts)


def test_a_network_of_the_tasks_own_leaves_no_room_for_a_model() -> None:
    with pytest.raises(InputError, match="task mine brings its own network; leave model out, got 'cnn'"):
        model_for(with_network(), "cnn", SIGNATURE)
    assert model_for(with_network(), "auto", SIGNATURE) == "auto"
    assert model_for(regression, "auto", SIGNATURE) == "mlp"


def test_a_network_gets_its_weights_from_the_seed_alone() -> None:
    first, again, other = (build(with_network(), SIGNATURE, seed=seed).state_dict()["weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def grouped(outputs: Tensor, targets: Tensor) -> Tensor:
    raise RuntimeError("shapes\n of no use")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": lambda o, y: (o[:, 0] - y).mean()}, r"its loss must give one number .* shape \(2,\), got shape \(\)"),
        ({"loss": lambda o, y: o - y}, r"its loss must give one number for each example, .* got shape \(2, 2\)"),
        ({"loss": lambda o, y: 0.5}, "its loss must give one number .* got float"),
        ({"loss": grouped}, "task mine does not take examples of x float32 4, y float32: shapes of no use"),
        ({"score": Score("F1", "higher", lambda o, y: o.sum())}, r"its score F1 must give one number .*shape \(\)"),
        ({"optimiser": lambda parameters, lr: None}, "its optimiser must return a torch optimiser, got None"),
        ({"network": lambda signature: nn.Linear(5, 1)}, "task mine does not take examples of x float32 4"),
        ({"network": lambda signature: None}, "the network of task mine must return a torch nn.Module, got NoneType"),
        ({"network": lambda: nn.Linear(4, 1)}, "the network of task mine could not be made"),
        ({"collate": lambda x, y: 1}, "task mine does not take examples"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_anything_is_trained(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(with_network(**changes), SIGNATURE)


def test_a_ready_model_takes_one_input() -> None:
    with pytest.raises(InputError, match="model 'mlp' takes one input, the data has 2; write a task with a network"):
        build(regression, Signature((VECTOR, NUMBER), NUMBER))


def test_integers_are_no_input_of_a_ready_model() -> None:
    with pytest.raises(InputError, match=r"model 'mlp' does not take data of shape \(4,\) and of int64"):
        build(regression, Signature((ArrayType(("int64",), (4,)),), NUMBER), "mlp")


def test_a_task_needs_a_network_or_outputs_and_a_direction() -> None:
    with pytest.raises(InputError, match="has no network; give it one, or outputs"):
        Task(loss=ready.squared_error, score=regression.score)
    with pytest.raises(InputError, match="better of score 'x' must be higher or lower, got 'up'"):
        Score("x", "up", ready.right)  # type: ignore[arg-type]
