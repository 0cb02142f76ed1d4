"""The batches of several clients as one, for engines that train them together.

Shapes: k clients, I local iterations, B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.client.engines.engine import Work
from perennial.common.command.errors import InputError
from perennial.common.task.learning_task import Batch, Task, collate
from perennial.common.task.ready import collate_numbers

# These make of each example what they make of it alone, so that many batches may be made at once.
_ONE_BY_ONE = (collate, collate_numbers)


def of_steps(task: Task, work: Sequence[Work], device: torch.device, budget: int) -> Iterator[Batch]:
    """Yield the batches of all clients for each local iteration: inputs and targets, each (k, B, *shape).

    budget: numbers that may be held at once.
    """
    iterations, batch = work[0].steps.shape
    numbers = len(work) * iterations * batch * sum(prod(x.shape[1:]) for x in work[0].x)
    if task.collate in _ONE_BY_ONE and numbers <= budget:
        inputs, target = _at_once(task, work)
        inputs = tuple(x.to(device) for x in inputs)
        target = None if target is None else target.to(device)
        yield from ((tuple(x[i] for x in inputs), None if target is None else target[i]) for i in range(iterations))
        return
    for i in range(iterations):
        batches = [task.batch(client.x, client.y, client.steps[i]) for client in work]
        yield joined(task, batches, torch.stack, device)


def joined(task: Task, batches: Sequence[Batch], join: Callable[[list[Tensor]], Tensor], device: torch.device) -> Batch:
    """Return the clients' batches as one, on the device."""
    try:
        inputs = tuple(join(list(parts)).to(device) for parts in zip(*(x for x, _ in batches), strict=True))
        targets = [target for _, target in batches if target is not None]
        return inputs, join(targets).to(device) if targets else None
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"task {task.name}: its collate gives clients batches of other shapes ({error}); use engine loop"
        ) from error


def _at_once(task: Task, work: Sequence[Work]) -> Batch:
    """Return all batches of all clients, each array (I, k, B, *shape)."""
    steps = np.stack([client.steps for client in work], axis=1)
    x = tuple(_rows([client.x[index] for client in work], steps) for index in range(len(work[0].x)))
    y = None if work[0].y is None else _rows([client.y for client in work], steps)
    inputs, target = task.collate(x, y)
    split = steps.shape
    return tuple(_split(one, split) for one in inputs), None if target is None else _split(target, split)


def _split(array: Tensor, split: tuple[int, ...]) -> Tensor:
    return array.reshape(*split, *array.shape[1:])


def _rows(arrays: Sequence[NDArray[Any] | None], steps: NDArray[np.int64]) -> NDArray[Any]:
    """Return the rows ``steps``, (I, k, B), of the clients' arrays, as (I * k * B, *shape)."""
    first = arrays[0]
    assert first is not None
    if all(array is first for array in arrays):
        # In a simulation the clients' rows are those of one data set.
        return np.asarray(first[steps.reshape(-1)])
    found = np.empty((*steps.shape, *first.shape[1:]), first.dtype)
    for k, array in enumerate(arrays):
        assert array is not None
        found[:, k] = array[steps[:, k]]
    return found.reshape(-1, *first.shape[1:])
