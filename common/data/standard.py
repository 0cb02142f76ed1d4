"""Numbers of different kinds made comparable, by what is known of them up to some time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# In deviations: a sensor that failed, or a cloudburst, is no reason to leave the range of the other numbers.
BOUND = 6.0


def standardised(values: NDArray[np.float64], past: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return values (n, ...) with mean 0 and deviation 1 over the rows of the past, and within ``BOUND``.

    What never changed in the past is 0.
    """
    deviation = values[past].std(axis=0)
    scaled: NDArray[np.float64] = (values - values[past].mean(axis=0)) / np.where(deviation > 0, deviation, np.inf)
    return np.clip(scaled, -BOUND, BOUND)
