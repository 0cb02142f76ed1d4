"""The predictors of a run: one model for each block that was trained, folded as Algorithms 1 and 2 say."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from perennial.common.command.errors import InputError
from perennial.common.wire.arrays import array_record, as_array, as_numpy
from perennial.server.psgd import fold
from perennial.server.strategies.trees import Tree, array_tree, arrays_of

AVERAGINGS = ("exponential", "mean")


def decay_of(averaging: str, decay: float) -> float | None:
    """Return what the maths calls decay: None for the running mean."""
    if averaging not in AVERAGINGS:
        raise InputError(f"averaging must be one of {', '.join(AVERAGINGS)}, got {averaging!r}")
    if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
        raise InputError(f"decay must be in [0, 1], got {decay!r}")
    return None if averaging == "mean" else float(decay)


class BlockPredictors:
    """x_tilde_m of Algorithm 1, u_tilde_m of Algorithm 2, by the block's name, as the dtypes of the initial model.

    folded: r, how many models each predictor averages, over all cycles.
    """

    def __init__(self, decay: float | None) -> None:
        self._decay = decay
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self.models: dict[str, ArrayRecord] = {}
        self.folded: dict[str, int] = {}

    def begin(self, initial: ArrayRecord) -> None:
        self._dtypes = _dtypes(initial)
        self.models, self.folded = {}, {}

    def fold(self, block: str, model: ArrayRecord) -> None:
        """Fold the model of a round into the predictor of its block; the first is taken whole."""
        done = self.folded.get(block, 0)
        self.folded[block] = done + 1
        if (not done or self._decay == 0.0) and _dtypes(model) == self._dtypes:
            # Whole, and as it is: records of several predictors then have the same arrays.
            self.models[block] = model.copy()
            return
        old = _numpy(self.models[block]) if done else {}
        new = fold(old, _numpy(model), done, self._decay, self._dtypes)
        self.models[block] = array_record((name, as_array(np.asarray(array))) for name, array in new.items())

    def same_as(self, block: str, other: str) -> None:
        """Let ``other`` have the predictor of ``block``."""
        self.models[other], self.folded[other] = self.models[block].copy(), self.folded[block]

    def taken(self) -> dict[str, ArrayRecord]:
        """Return the predictors in records of their own, which the caller may take apart."""
        return {block: model.copy() for block, model in self.models.items()}

    def state_dict(self) -> Tree:
        return {block: {"folded": self.folded[block], **array_tree(model)} for block, model in self.models.items()}

    def load_state_dict(self, state: Tree) -> None:
        self.models = {block: arrays_of(one) for block, one in state.items()}
        self.folded = {block: int(one["folded"]) for block, one in state.items()}


def _dtypes(model: ArrayRecord) -> dict[str, np.dtype[Any]]:
    return {name: np.dtype(array.dtype) for name, array in model.items()}


def _numpy(record: ArrayRecord) -> dict[str, Any]:
    return {name: as_numpy(array) for name, array in record.items()}
