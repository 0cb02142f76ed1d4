"""One hidden layer of several widths, for the cost of a round by model size."""

from __future__ import annotations

from functools import partial
from math import prod

from torch import nn


def _mlp(width: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU(), nn.Linear(width, classes))


mlp_16, mlp_64, mlp_256, mlp_1024 = (partial(_mlp, width) for width in (16, 64, 256, 1024))
