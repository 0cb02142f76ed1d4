"""What a training engine is: K clients, one or two chains, I local iterations each.

Shapes used in this package:
    P  parameters of the model, flattened in state_dict order      K  clients of the order on this node
    I  local iterations          B  examples of one batch          J  examples a client judges on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perennial.common.data.examples import Inputs, Targets
from perennial.common.data.partition import Rows
from perennial.common.wire.chains import Vector


@dataclass(frozen=True)
class Received:
    """A chain's model as the order brought it, float32 (P,), and the learning rate of its local steps."""

    params: Vector
    lr: float


@dataclass(frozen=True)
class Work:
    """One client's part of an order. ``steps`` and ``judged`` are rows of ``x`` and ``y``.

    x: the inputs, each (n, *shape), possibly memory-mapped. y: the targets, None if there are none.
    steps: (I, B), one row a local iteration. judged: (J,), empty where no loss is asked for.
    seed: of all that the network draws by itself, such as dropout's masks.
    """

    client: int
    x: Inputs
    y: Targets
    steps: Rows
    judged: Rows
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """What one chain became.

    params: the plain mean over clients of their local models, summed in float64, float32 (P,).
    train_losses: float64 (K,), each client's mean batch loss over its iterations, each taken before the step.
    losses: float64 (K,), each client's mean loss of the *received* model on ``judged``; NaN where nothing was asked.
    """

    params: Vector
    train_losses: NDArray[np.float64]
    losses: NDArray[np.float64]


class Engine(Protocol):
    """Trains every client of an order from the same received models, by the loss and the optimiser of a task."""

    name: str

    def train(self, chains: Sequence[Received], work: Sequence[Work]) -> list[Trained]:
        """Return one result a chain; both chains see the same batches."""

    def judge(self, models: Sequence[Vector], work: Sequence[Work]) -> list[NDArray[np.float64]]:
        """Return, for each model, every client's mean loss on its ``judged`` rows, (K,)."""


def check_size(model: Vector, size: int) -> None:
    """Raise a ValueError unless ``model`` is a vector of ``size`` parameters."""
    if model.shape != (size,):
        raise ValueError(f"the model must have {size} parameters, got shape {model.shape}")
