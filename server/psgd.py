"""Algorithms 1 and 2 on arrays. Pure; imports neither flwr nor torch.

Models are named arrays of any dtype. Their mean over the clients is in ``exact.py``, as float32 vectors (P,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.wire.chains import MIXED, SEPARATE

Arrays = Mapping[str, NDArray[Any]]


def fold(
    predictor: Arrays, model: Arrays, folded: int, decay: float | None, dtypes: Mapping[str, np.dtype[Any]]
) -> dict[str, NDArray[Any]]:
    """Return the predictor with one more model in it (Algorithm 1, line 8; Algorithm 2, line 12).

    folded: r, the models that it already averages; before the first fold ``predictor`` is not read, and the model is
    taken whole. decay: None for the running mean, r/(r+1) and 1/(r+1); else the weight of the old predictor
    (experiments: 0.5). Floats are folded in float64, and each array is as ``dtypes`` says. What is whole or true or
    false by its dtype has no average: it is the model's, rounded if an aggregation made fractions of it.
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
