"""A predictor as a network that answers: examples in, outputs out. This is where torch comes in.

Shapes: n examples; each input (n, *shape), each output (n, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perennial.common.command.errors import InputError
from perennial.common.data.examples import Inputs, Signature, x_names
from perennial.common.data.manifest import read_signature
from perennial.common.task import models, ready
from perennial.common.task.learning_task import Task
from perennial.server.predict.loading import Predictor

_PIXELS_OR_NUMBERS = ("uint8", "float32")


@dataclass(frozen=True, eq=False)
class PredictorNetwork:
    """A predictor, the task that it was trained for, and the examples that it takes."""

    block: str
    version: int
    signature: Signature
    task: Task
    module: nn.Module

    @classmethod
    def of(cls, predictor: Predictor) -> Self:
        """Return the network that the manifest names with the predictor's arrays; an InputError if it is another."""
        task, signature, module = _described(predictor.manifest["model"])
        try:
            module.load_state_dict({name: torch.tensor(array) for name, array in predictor.arrays.items()})
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            name = predictor.manifest["model"]["name"]
            raise InputError(f"model {name!r} is not the one that was trained: {reason}") from error
        return cls(predictor.block, predictor.version, signature, task, module.eval())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return x_names(len(self.signature.x))

    def check(self, x: Inputs, where: str) -> None:
        """Refuse inputs that are not examples of this predictor's signature."""
        Signature(self.signature.x, None).check(x, None, where)

    def inputs(self, x: Inputs) -> tuple[Tensor, ...]:
        """Return examples as the module takes them."""
        y = self.signature.y
        # As in training, where examples have their targets.
        return self.task.collate(x, None if y is None else y.zeros(len(x[0])))[0]

    def outputs(self, x: Inputs) -> tuple[NDArray[Any], ...]:
        """Return what the module gives for examples, which were checked."""
        with torch.inference_mode():
            return as_arrays(self.module(*self.inputs(x)))

    def score(self, x: Inputs, y: NDArray[Any] | None) -> NDArray[np.float64]:
        """Return what the task's score makes of each example."""
        with torch.inference_mode():
            inputs, target = self.task.collate(x, y)
            return np.asarray(self.task.score.each(self.module(*inputs), target).double().numpy())


def as_arrays(outputs: object) -> tuple[NDArray[Any], ...]:
    """Return what a module gave as arrays; one output is a tensor, several are a tuple of tensors."""
    found = outputs if isinstance(outputs, tuple | list) else (outputs,)
    if not all(isinstance(one, Tensor) for one in found):
        raise InputError(
            "the network must give a tensor, or a tuple of tensors, so that it can be asked for predictions"
        )
    return tuple(one.detach().numpy() for one in found)


def output_names(count: int) -> tuple[str, ...]:
    """Return the names of so many outputs: ``output`` alone, or ``output0``, ``output1`` and so on."""
    return ("output",) if count == 1 else tuple(f"output{index}" for index in range(count))


def _described(model: Mapping[str, Any] | None) -> tuple[Task, Signature, nn.Module]:
    """Return task, signature and a network of the initial weights, as a manifest has them."""
    if model is None:
        raise InputError("the run names no model that could be built; only load_predictor can give its arrays")
    if "task" not in model:
        signature = Signature.labelled(tuple(model["shape"]), model["classes"], _PIXELS_OR_NUMBERS)
        network = models.build(model["name"], tuple(model["shape"]), model["classes"])
        return ready.classification, signature, network
    task = ready.open_task(model["task"])
    signature = replace(read_signature(dict(model), Path("manifest.json")), told=model.get("told", ""))
    return task, signature, ready.build(task, signature, model["name"])
