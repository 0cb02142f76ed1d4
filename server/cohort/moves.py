"""How far the updates of a round move a model: one that moves it far outside of what the others do is no update.

A *move* is the l2 norm of a trained model minus the one that was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

from perennial.common.command.config import AUTO_NORM, RunConfig
from perennial.common.wire.chains import Vector
from perennial.common.wire.updates import Update

# Honest clients with few and unlike examples move a model up to ten times as far as each other, and a model that is
# nearly learnt by little; nothing honest comes near this, and one such update can do no more than this many others.
FAR = 100.0
# Of fewer moves nobody can tell which one is wrong.
_FEWEST = 3


class Moves:
    """The usual move of each chain: the largest median of a round so far."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def far(self, updates: Mapping[int, Update], heads: Mapping[str, Vector]) -> dict[int, str]:
        """Return, by node, why an update is far outside what the others of the round moved, and earlier rounds."""
        reasons: dict[int, str] = {}
        for chain, head in heads.items():
            moves = {node: move(update.models[chain], head) for node, update in updates.items()}
            usual = self._usual.get(chain, 0.0)
            for node, one in moves.items():
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


Far = Callable[[Mapping[int, Update], Mapping[str, Vector]], dict[int, str]]


def far_by(config: RunConfig) -> Far | None:
    """Return what names the updates that go too far, and why, by the key max-update-norm; None: none does."""
    bound = config.max_update_norm
    if bound == AUTO_NORM:
        return Moves().far
    return (lambda updates, heads: _beyond(bound, updates, heads)) if bound else None


def _beyond(bound: float, updates: Mapping[int, Update], heads: Mapping[str, Vector]) -> dict[int, str]:
    return {
        node: f"{chain}: the update moves the model by {one:.6g}, max-update-norm is {bound:g}"
        for chain, head in heads.items()
        for node, update in updates.items()
        if (one := move(update.models[chain], head)) > bound
    }


def move(model: Vector, head: Vector) -> float:
    # In float64, in which the square of every float32 is finite.
    return float(np.linalg.norm(model.astype(np.float64) - head))
