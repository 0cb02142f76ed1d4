"""A task: what is learnt, by which loss and which local optimiser, and by which score predictors are judged.

Shapes: n examples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perennial.common.command.errors import InputError, shown
from perennial.common.data.datasets import PIXELS
from perennial.common.data.examples import Inputs, Signature, Targets
from perennial.common.task.local_optimisers import PLAIN, Optimiser

ACCURACY = "accuracy"
# What one batch becomes: the network's inputs, and what its outputs are compared with (None if with nothing).
Batch = tuple[tuple[Tensor, ...], Tensor | None]
# Both take what the network gave and what it is compared with; a number for each example: (n,).
Loss = Callable[[Any, Any], Tensor]
Each = Callable[[Any, Any], Tensor]


def as_input(x: NDArray[Any]) -> Tensor:
    """Return an input as networks take it: uint8 as pixels in [-1, 1], other integers as int64, the rest as float32."""
    if x.dtype == np.uint8:
        return torch.from_numpy(PIXELS[x])
    return torch.from_numpy(np.ascontiguousarray(x, np.int64 if x.dtype.kind in "iu" else np.float32))


def as_target(y: NDArray[Any]) -> Tensor:
    """Return targets as losses take them: integers as int64, the rest as float32."""
    return torch.from_numpy(np.ascontiguousarray(y, np.int64 if y.dtype.kind in "iu" else np.float32))


def collate(x: Inputs, y: Targets) -> Batch:
    """Return the batch of examples as they are."""
    return tuple(map(as_input, x)), None if y is None else as_target(y)


@dataclass(frozen=True)
class Score:
    """What predictors are judged by: the mean over a test set of ``each``, which gives a number for each example.

    A score that is called accuracy is a fraction, and is shown in %; any other one is shown as it is.
    """

    name: str
    better: Literal["higher", "lower"]
    each: Each

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise InputError(f"better of score {self.name!r} must be higher or lower, got {self.better!r}")
        if self.name == ACCURACY and self.better != "higher":
            raise InputError("a higher accuracy is better; give another name to a score of which lower is better")

    def shown(self, value: float) -> str:
        """Return the mean as people read it."""
        return f"{value:.1%}" if self.name == ACCURACY else f"{self.name} {value:.4g}"


@dataclass(frozen=True)
class Task:
    """What a run learns.

    loss: of each example, so that votes can use it; a step goes down the gradient of its mean.
    network: makes the module, called as module(*inputs), for examples of a signature. None: the key `model` names it,
    and ``outputs`` says how many outputs it has.
    collate: makes the network's inputs, and what its outputs are compared with, out of arrays.

    >>> from perennial.common.task.ready import absolute_error, squared_error
    >>> def network(signature: Signature) -> nn.Module:
    ...     return nn.Linear(*signature.x[0].shape, 1)
    >>> rides = Task(loss=squared_error, score=Score("absolute error", "lower", absolute_error), network=network)
    """

    loss: Loss
    score: Score
    network: Callable[[Signature], nn.Module] | None = None
    outputs: Callable[[Signature], int] | None = None
    optimiser: Optimiser = PLAIN
    collate: Callable[[Inputs, Targets], Batch] = collate
    name: str = "of your own"

    def __post_init__(self) -> None:
        if self.network is None and self.outputs is None:
            raise InputError(f"task {self.name} has no network; give it one, or outputs for a network by `model`")

    def batch(self, x: Inputs, y: Targets, rows: Any) -> Batch:
        """Return the batch of these rows."""
        return self.collate(tuple(array[rows] for array in x), None if y is None else y[rows])

    def check(self, network: nn.Module, signature: Signature) -> None:
        """Refuse a task whose parts do not fit each other or examples of ``signature``, by trying two of those."""
        was_training = network.training
        network.eval()
        try:
            with torch.no_grad():
                inputs, target = self.batch(*signature.zeros(2), slice(None))
                found = network(*inputs)
                numbers = {"loss": self.loss(found, target), f"score {self.score.name}": self.score.each(found, target)}
            optimiser = self.optimiser([torch.zeros(1)], 0.1)
        except InputError:
            raise
        except Exception as error:  # someone else's code: whatever it raises says that it does not fit
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"task {self.name} does not take examples of {signature}: {reason}") from error
        finally:
            network.train(was_training)
        for what, values in numbers.items():
            _check_numbers(values, f"task {self.name}: its {what}")
        if not callable(getattr(optimiser, "step", None)):
            raise InputError(f"task {self.name}: its optimiser must return a torch optimiser, got {shown(optimiser)}")


def _check_numbers(values: object, what: str) -> None:
    if not isinstance(values, Tensor) or values.shape != (2,):
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{what} must give one number for each example, for 2 examples shape (2,), got {got}")
