"""The two chains by name, and what a model of a chain is to the maths. NumPy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MIXED, SEPARATE = "mixed", "separate"
CHAINS = (MIXED, SEPARATE)
# What a config record names in place of a chain if the model is a block's predictor.
PREDICTOR = "predictor"
Vector = NDArray[np.float32]
