"""Algorithms 1 and 2 on arrays: models are float32 vectors (P,) or named arrays. Pure; imports neither flwr nor torch.

What a library user trains are named arrays of any dtype; the project's own app trains float32 vectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.wire.chains import MIXED, SEPARATE, Vector

Arrays = Mapping[str, NDArray[Any]]


def mean(models: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return x_bar, the weighted mean of the local models (Algorithm 1, line 5; Algorithm 2, lines 6 and 7).

    Summed in float64 in the order given: callers sort, so that reruns agree to the last bit.
    """
    total = math.fsum(weights)
    sum_ = np.zeros(models[0].shape, np.float64)
    for model, weight in zip(models, weights, strict=True):
        sum_ += model * np.float64(weight / total)
    return sum_.astype(np.float32)


def fold(predictor: Vector, model: Vector, folded: int, decay: float | None) -> Vector:
    """Return the predictor with one more model in it (Algorithm 1, line 8; Algorithm 2, line 12).

    folded: r, the models that it already averages. decay: None for the running mean, r/(r+1) and 1/(r+1); else the
    weight of the old predictor (experiments: 0.5). The first model is taken whole either way.
    """
    return _folded(predictor, model, _kept(folded, decay), np.dtype(np.float32))


def fold_named(
    predictor: Arrays, model: Arrays, folded: int, decay: float | None, dtypes: Mapping[str, np.dtype[Any]]
) -> dict[str, NDArray[Any]]:
    """Return ``fold`` of models that are named arrays of any kind, each as ``dtypes`` says.

    Floats are folded in float64. What is whole or true or false by its dtype has no average: it is the model's, rounded
    if an aggregation made fractions of it. Before the first fold ``predictor`` is not read.
    """
    keep = _kept(folded, decay)
    return {name: _folded(predictor.get(name), model[name], keep, dtype) for name, dtype in dtypes.items()}


def _kept(folded: int, decay: float | None) -> float:
    """Return the weight of the old predictor."""
    if folded == 0:
        return 0.0
    return folded / (folded + 1) if decay is None else decay


def _folded(predictor: NDArray[Any] | None, model: NDArray[Any], keep: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind not in "fc":
        return (np.rint(model) if model.dtype.kind == "f" else model).astype(dtype, copy=False)
    if keep == 0.0 or predictor is None:
        return model.astype(dtype, copy=False)
    wide = np.result_type(dtype, np.float64)
    return (keep * predictor.astype(wide) + (1.0 - keep) * model.astype(wide)).astype(dtype)


def choose(loss_mixed: float, loss_separate: float) -> str:
    """Return the chain with the smaller average local loss (Algorithm 2, line 10); a tie goes to the mixed chain."""
    if not (math.isfinite(loss_mixed) and math.isfinite(loss_separate)):
        raise ValueError(f"losses must be finite to be compared, got mixed {loss_mixed} and separate {loss_separate}")
    return SEPARATE if loss_separate < loss_mixed else MIXED


def median(models: Sequence[Vector]) -> Vector:
    """Return the coordinate-wise median."""
    return np.median(np.stack(models), axis=0).astype(np.float32)


def trimmed(trim: float, count: int) -> int:
    """Return floor(trim * count), of the numbers as they are written: 0.29 * 100 is a little under 29 in binary."""
    return math.floor(trim * count + 1e-9)


def trimmed_mean(models: Sequence[Vector], trim: float) -> Vector:
    """Return the coordinate-wise mean without the floor(trim * n) smallest and largest values."""
    cut = trimmed(trim, len(models))
    ordered = np.sort(np.stack(models), axis=0)
    kept: Vector = ordered[cut : len(models) - cut].mean(axis=0, dtype=np.float64).astype(np.float32)
    return kept


@dataclass(frozen=True)
class Chains:
    """The models that training carries on: x_bar, and w_bar of every block (empty where no chain is separate)."""

    mixed: Vector
    separate: tuple[Vector, ...] = ()

    @classmethod
    def start(cls, initial: Vector, separate_blocks: int = 0) -> Chains:
        """Return the state before round 1: every chain starts as the initial model."""
        return cls(initial, (initial,) * separate_blocks)

    def advanced(self, block: int, mixed: Vector, separate: Vector | None = None) -> Chains:
        """Return the chains after a round of ``block`` (Algorithm 2, lines 6 and 7)."""
        if separate is None:
            return replace(self, mixed=mixed)
        return Chains(mixed, (*self.separate[:block], separate, *self.separate[block + 1 :]))


@dataclass(frozen=True)
class Predictors:
    """One model a block, and how many models each averages (r, over all cycles)."""

    models: tuple[Vector, ...]
    folded: tuple[int, ...]

    @classmethod
    def start(cls, initial: Vector, blocks: int) -> Predictors:
        return cls((initial,) * blocks, (0,) * blocks)

    def with_fold(self, block: int, model: Vector, decay: float | None) -> Predictors:
        """Return the predictors after ``model`` was folded into that of ``block``."""
        predictor = fold(self.models[block], model, self.folded[block], decay)
        models = (*self.models[:block], predictor, *self.models[block + 1 :])
        folded = (*self.folded[:block], self.folded[block] + 1, *self.folded[block + 1 :])
        return Predictors(models, folded)
