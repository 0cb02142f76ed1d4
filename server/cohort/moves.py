"""How far the updates of a round move a model: one that moves it far outside of what the others do is no update.

A *move* is the l2 norm of a trained model minus the one that was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Protocol

import numpy as np

from perennial.common.command.config import AUTO_NORM, RunConfig
from perennial.common.wire.chains import Vector

# Honest clients with few and unlike examples move a model up to ten times as far as each other, and a model that is
# nearly learnt by little; nothing honest comes near this, and one such update can do no more than this many others.
FAR = 100.0
# Of fewer moves nobody can tell which one is wrong.
_FEWEST = 3


class Bound(Protocol):
    """By how much an update may move the models. Moves are those of one update, by chain."""

    def holds(self, moves: Mapping[str, float]) -> bool:
        """Tell whether an update counts whatever the others of its round are; False: they decide."""

    def far(self, updates: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
        """Return, out of all updates of a round by node, those that do not count, and why."""


class UsualMoves:
    """Compares an update with the others of its round, and with the largest median of the rounds before."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def holds(self, moves: Mapping[str, float]) -> bool:
        return all(one <= FAR * self._usual.get(chain, 0.0) for chain, one in moves.items())

    def far(self, updates: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for chain in next(iter(updates.values()), {}):
            moves = {node: of_update[chain] for node, of_update in updates.items()}
            usual = self._usual.get(chain, 0.0)
            for node, one in moves.items():
                # The median over the others takes long, and can only add to what is allowed.
                if one <= FAR * usual:
                    continue
                others = [move for other, move in moves.items() if other != node]
                most = max(usual, median(others) if len(moves) >= _FEWEST else 0.0)
                if most and one > FAR * most:
                    reasons[node] = (
                        f"{chain}: the update moves the model by {one:.6g}, the others by {most:.6g}: "
                        "far outside, by max-update-norm auto"
                    )
            near = [one for node, one in moves.items() if node not in reasons]
            if len(near) >= _FEWEST:
                self._usual[chain] = max(usual, median(near))
        return reasons


class LargestMove:
    """Compares an update with a number."""

    def __init__(self, most: float) -> None:
        self._most = most

    def holds(self, moves: Mapping[str, float]) -> bool:
        return all(one <= self._most for one in moves.values())

    def far(self, updates: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
        return {
            node: f"{chain}: the update moves the model by {one:.6g}, max-update-norm is {self._most:g}"
            for node, moves in updates.items()
            for chain, one in moves.items()
            if one > self._most
        }


def bound_of(config: RunConfig) -> Bound | None:
    """Return the bound that the key max-update-norm names; None: there is none."""
    if config.max_update_norm == AUTO_NORM:
        return UsualMoves()
    return LargestMove(config.max_update_norm) if config.max_update_norm else None


def move(model: Vector, head: Vector) -> float:
    # In float64, in which the square of every float32 is finite.
    return float(np.linalg.norm(model.astype(np.float64) - head))
