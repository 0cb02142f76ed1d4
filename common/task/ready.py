"""The ready tasks, tasks by name, and the network that a task trains."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from perennial.common.command.errors import InputError
from perennial.common.command.naming import imported, is_name
from perennial.common.command.typed_keys import AUTO
from perennial.common.data.examples import Inputs, Signature, Targets
from perennial.common.task import models
from perennial.common.task.learning_task import Batch, Score, Task, as_input, collate
from perennial.common.task.told_network import ToldNetwork

# --- classification ---------------------------------------------------------------------------------------------------


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example; outputs: (n, classes)."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each example whose largest output is its label's, else 0."""
    return (outputs.argmax(1) == labels).float()


def _classes(signature: Signature) -> int:
    if not signature.classes:
        raise InputError(f"task classification needs labels, whole numbers from 0 on, as y; the data has {signature}")
    return signature.classes


# --- binary -----------------------------------------------------------------------------------------------------------


def logistic_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    """Return the logistic loss of each example; outputs: (n, 1); answers: (n,) in [0, 1]."""
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], answers, reduction="none")


def right_side(outputs: Tensor, answers: Tensor) -> Tensor:
    """Return 1 for each example whose output is above 0 if, and only if, its answer is above one half; else 0."""
    return ((outputs[:, 0] > 0) == (answers > 0.5)).float()


def _one(signature: Signature) -> int:
    y = signature.y
    if y is None or y.shape or (y.is_integer and not 1 <= signature.classes <= 2):
        raise InputError(f"task binary needs a y of 0 or 1 for each example; the data has {signature}")
    return 1


# --- regression -------------------------------------------------------------------------------------------------------


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each example, the mean over its numbers if it has several."""
    return _over_numbers((outputs.reshape(targets.shape) - targets).square())


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the absolute error of each example, the mean over its numbers if it has several."""
    return _over_numbers((outputs.reshape(targets.shape) - targets).abs())


def _over_numbers(errors: Tensor) -> Tensor:
    return errors.flatten(1).mean(1) if errors.ndim > 1 else errors


def _numbers(signature: Signature) -> int:
    if signature.y is None:
        raise InputError(f"task regression needs a y of one or more numbers; the data has {signature}")
    return prod(signature.y.shape)


def collate_numbers(x: Inputs, y: Targets) -> Batch:
    """Return the batch with the targets as float32, whatever they are stored as."""
    inputs, target = collate(x, y)
    return inputs, None if target is None else target.to(torch.float32)


# ----------------------------------------------------------------------------------------------------------------------

classification = Task(
    loss=cross_entropy, score=Score("accuracy", "higher", right), outputs=_classes, name="classification"
)
binary = Task(
    loss=logistic_loss,
    score=Score("accuracy", "higher", right_side),
    outputs=_one,
    collate=collate_numbers,
    name="binary",
)
regression = Task(
    loss=squared_error,
    score=Score("absolute error", "lower", absolute_error),
    outputs=_numbers,
    collate=collate_numbers,
    name="regression",
)
READY = {task.name: task for task in (classification, binary, regression)}


def open_task(name: str) -> Task:
    """Return the task called ``name``: a ready one, or one of a user's own as ``package.module:name``."""
    if name in READY:
        return READY[name]
    if not is_name(name):
        raise InputError(f"task must be one of {', '.join(READY)} or package.module:name, got {name!r}")
    found = imported("task", name)
    if not isinstance(found, Task):
        raise InputError(f"task {name!r} must be a perennial Task, got {type(found).__name__}")
    return replace(found, name=name)


def model_for(task: Task, model: str, signature: Signature) -> str:
    """Return the name of the model that ``task`` trains, if ``model`` is the key's value.

    A task with a network of its own has none: there `auto` stays.
    """
    if task.network is None:
        return models.default_for(signature.x[0].shape) if model == AUTO else model
    if model != AUTO:
        raise InputError(f"task {task.name} brings its own network; leave model out, got {model!r}")
    return AUTO


def build(task: Task, signature: Signature, model: str = AUTO, seed: int = 0) -> nn.Module:
    """Return the network of ``task`` with the initial weights that ``seed`` gives, checked to fit the data."""
    model = model_for(task, model, signature)
    if task.network is not None:
        make = task.network
        network = models.seeded(lambda: make(signature), f"the network of task {task.name}", seed)
    else:
        assert task.outputs is not None
        inputs = signature.x[:-1] if signature.told else signature.x
        if len(inputs) != 1:
            raise InputError(
                f"model {model!r} takes one input, the data has {len(inputs)}; write a task with a network for it"
            )
        examples = as_input(inputs[0].zeros(2))
        network = models.build(model, inputs[0].shape, task.outputs(signature), seed, examples=examples)
        if signature.told:
            network = ToldNetwork(network, signature.told, *signature.x[-1].shape)
    task.check(network, signature)
    return network
