"""Neighbours with an optimiser on the server: the cohort's mean is not the next model but a direction towards it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perennial.common.wire.chains import MIXED, Vector
from perennial.common.wire.updates import Losses
from perennial.server.run.state import RoundRecord
from perennial.server.strategies.own.block_cyclic import BlockCyclic

Memory = Mapping[str, Vector]


def momentum_step(model: Vector, mean: Vector, memory: Memory, lr: float, momentum: float) -> tuple[Vector, Memory]:
    """Return the next model and its velocity, as Flower's FedAvgM: v <- momentum * v + (x - mean), x <- x - lr * v."""
    gradient = model.astype(np.float64) - mean
    velocity = momentum * memory["velocity"].astype(np.float64) + gradient if memory else gradient
    return (model - lr * velocity).astype(np.float32), {"velocity": velocity.astype(np.float32)}


def adam_step(
    model: Vector, mean: Vector, memory: Memory, server_round: int, lr: float, betas: tuple[float, float], tau: float
) -> tuple[Vector, Memory]:
    """Return the next model and its moments, as Flower's FedAdam: x <- x + lr_t * m / (sqrt(v) + tau).

    lr_t corrects the moments' start at zero as Flower does, by one round more than were done.
    """
    first, second = (memory[name].astype(np.float64) if memory else 0.0 for name in ("first", "second"))
    delta = mean.astype(np.float64) - model
    first = betas[0] * first + (1 - betas[0]) * delta
    second = betas[1] * second + (1 - betas[1]) * delta**2
    corrected = lr * math.sqrt(1 - betas[1] ** (server_round + 1)) / (1 - betas[0] ** (server_round + 1))
    moved = model + corrected * first / (np.sqrt(second) + tau)
    return moved.astype(np.float32), {"first": first.astype(np.float32), "second": second.astype(np.float32)}


class _ServerOptimiser(BlockCyclic):
    """FedAvg whose one model advances by a step of the server's."""

    def _advance(self, record: RoundRecord, models: Mapping[str, Vector], judged: Sequence[Losses]) -> None:
        moved, memory = self._step(models[MIXED], record.slot.server_round)
        self.state = replace(self.state, memory=memory)
        super()._advance(record, {MIXED: moved}, judged)

    @abstractmethod
    def _step(self, mean: Vector, server_round: int) -> tuple[Vector, Memory]:
        """Return the model after a round whose clients' mean is ``mean``, and what the next step needs."""


class OwnFedAvgM(_ServerOptimiser):
    """FedAvg with momentum on the server (Hsu, Qi and Brown, 2019)."""

    def _step(self, mean: Vector, server_round: int) -> tuple[Vector, Memory]:
        lr, momentum = self.config.server_lr or 1.0, self.config.server_momentum
        return momentum_step(self.state.chains.mixed, mean, self.state.memory, lr, momentum)


class OwnFedAdam(_ServerOptimiser):
    """Adam on the server (Reddi et al., 2021)."""

    def _step(self, mean: Vector, server_round: int) -> tuple[Vector, Memory]:
        config, state = self.config, self.state
        betas = (config.server_momentum, config.server_beta2)
        return adam_step(
            state.chains.mixed, mean, state.memory, server_round, config.server_lr or 0.01, betas, config.server_tau
        )
