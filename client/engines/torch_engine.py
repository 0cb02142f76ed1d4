"""What the engines that compute with torch share: they take one chain, or one model, after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from perennial.client.engines.engine import Received, Trained, Work
from perennial.common.task.learning_task import Task
from perennial.common.wire.chains import Vector

# Judged rows are taken in parts, so that memory stays bounded.
PART = 256


class TorchEngine(ABC):
    """Chains are trained one after another, so that a chain's bits do not depend on the others."""

    def __init__(self, task: Task) -> None:
        self._task = task
        # Of several, a worker sees those that it was given.
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def train(self, chains: Sequence[Received], work: Sequence[Work]) -> list[Trained]:
        """Return one result a chain; both chains see the same batches."""
        if not work:
            raise ValueError("an order needs at least one client, got none")
        return [self._train_chain(chain, work) for chain in chains]

    def judge(self, models: Sequence[Vector], work: Sequence[Work]) -> list[NDArray[np.float64]]:
        """Return, for each model, every client's mean loss on its ``judged`` rows, (K,)."""
        return [self._judge_model(model, work) for model in models]

    @abstractmethod
    def _train_chain(self, chain: Received, work: Sequence[Work]) -> Trained: ...

    @abstractmethod
    def _judge_model(self, model: Vector, work: Sequence[Work]) -> NDArray[np.float64]: ...
