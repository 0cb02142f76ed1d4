"""Log-log slopes with intervals over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perennial.common.wire.seeding import generator
from perennial.simulation.theory.problem import Floats

RESAMPLES = 2000


@dataclass(frozen=True)
class Slope:
    """The exponent of a power law and its 95 % interval."""

    value: float
    low: float
    high: float

    def against(self, bound: float) -> str:
        """Say how the slope relates to the exponent of an upper bound."""
        if self.high < bound:
            return "below the bound's"
        return "above the bound's" if self.low > bound else "the bound's"


def fit(sizes: Floats, excess: Floats) -> Slope | None:
    """Return the least-squares slope of log E[excess] (S, sizes) over log sizes; None where a mean is not positive.

    The mean over seeds estimates the theorems' expectation, so it is taken before the logarithm. The interval is the
    percentile bootstrap over seeds, a seed keeping all its sizes; resamples with a mean that is not positive count as
    no slope, and more than one in forty of them leaves none at all.
    """
    if excess.ndim != 2 or excess.shape[1] != len(sizes) or len(sizes) < 2:
        raise ValueError(f"excess must be (seeds, {len(sizes)}) over at least 2 sizes, got {excess.shape}")
    if not (excess.mean(axis=0) > 0.0).all():
        return None
    rows = generator(0, "theory-bootstrap").integers(0, len(excess), (RESAMPLES, len(excess)))
    means = excess[rows].mean(axis=1)
    positive = (means > 0.0).all(axis=1)
    if positive.mean() < 1.0 - 1.0 / 40.0:
        return None
    low, high = np.percentile(_slopes(sizes, means[positive]), [2.5, 97.5])
    return Slope(float(_slopes(sizes, excess.mean(axis=0)[None])[0]), float(low), float(high))


def mean_interval(excess: Floats) -> tuple[float, float, float]:
    """Return the mean over seeds (S,) and its 95 % interval by the same bootstrap."""
    rows = generator(0, "theory-bootstrap").integers(0, len(excess), (RESAMPLES, len(excess)))
    low, high = np.percentile(excess[rows].mean(axis=1), [2.5, 97.5])
    return float(excess.mean()), float(low), float(high)


def _slopes(sizes: Floats, means: Floats) -> Floats:
    across = np.log(sizes) - np.log(sizes).mean()
    slopes: Floats = np.log(means) @ across / (across @ across)
    return slopes
