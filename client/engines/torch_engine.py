"""What the engines that compute with torch share: they take one chain, or one model, after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from perennial.client.engines.engine import Received, Trained, Work, check_size
from perennial.common.task.learning_task import Task
from perennial.common.task.models import arrays_of
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout

# Judged rows are taken in parts, so that memory stays bounded.
PART = 256


class TorchEngine(ABC):
    """Chains are trained one after another, so that a chain's bits do not depend on the others.

    Buffers (BatchNorm's running statistics) are part of the model, and are averaged over clients as weights are; whole
    numbers among them (its counter) are those of the first client.
    """

    def __init__(self, module: nn.Module, task: Task) -> None:
        self._task = task
        self._layout = Layout.of(arrays_of(module.cpu()))
        # Of several, a worker sees those that it was given.
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def train(self, chains: Sequence[Received], work: Sequence[Work]) -> list[Trained]:
        """Return one result a chain; both chains see the same batches."""
        if not work:
            raise ValueError("an order needs at least one client, got none")
        for chain in chains:
            check_size(chain.params, self._layout.size)
        return [self._train_chain(chain, work) for chain in chains]

    def judge(self, models: Sequence[Vector], work: Sequence[Work]) -> list[NDArray[np.float64]]:
        """Return, for each model, every client's mean loss on its ``judged`` rows, (K,)."""
        for model in models:
            check_size(model, self._layout.size)
        return [self._judge_model(model, work) for model in models]

    @abstractmethod
    def _train_chain(self, chain: Received, work: Sequence[Work]) -> Trained: ...

    @abstractmethod
    def _judge_model(self, model: Vector, work: Sequence[Work]) -> NDArray[np.float64]: ...
