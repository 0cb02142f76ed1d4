"""The optimiser of a client's local steps. It is made anew for every round, so that momentum starts from nothing.

An optimiser is a function of the parameters and the learning rate of the chain, ``lr-mixed`` or ``lr-separate``, that
returns one of torch's. The ready ones work number by number, so that the stacked engine can run all clients at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Steps(Protocol):
    """What takes the local steps: a ``torch.optim.Optimizer``, of which this is all that is used."""

    def step(self) -> object:
        """Change the parameters by their ``grad``."""


Optimiser = Callable[[Sequence[Tensor], float], Steps]


@dataclass(frozen=True)
class SGD:
    """Plain SGD as in the paper, or with momentum and weight decay as torch has them."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __call__(self, parameters: Sequence[Tensor], lr: float) -> Steps:
        if self == PLAIN:
            return _Plain(parameters, lr)
        return torch.optim.SGD(parameters, lr, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Adam:
    """Adam as torch has it; ``weight_decay`` is added to the gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __call__(self, parameters: Sequence[Tensor], lr: float) -> Steps:
        return torch.optim.Adam(parameters, lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)


PLAIN = SGD()
NUMBER_BY_NUMBER = (SGD, Adam)


class _Plain:
    """Not torch's: that loads its compiler, for a second, and makes a small network's step a sixth slower."""

    def __init__(self, parameters: Sequence[Tensor], lr: float) -> None:
        self._parameters, self._lr = parameters, lr

    def step(self) -> None:
        moved = [(value, value.grad) for value in self._parameters if value.grad is not None]
        with torch.no_grad():
            torch._foreach_add_([value for value, _ in moved], [slope for _, slope in moved], alpha=-self._lr)
