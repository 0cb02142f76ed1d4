"""Networks for the benchmarks: one hidden layer of several widths, and one that the native engine does not take."""

from __future__ import annotations

from functools import partial
from math import prod

from torch import nn


def _mlp(width: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU(), nn.Linear(width, classes))


mlp_16, mlp_64, mlp_256, mlp_1024 = (partial(_mlp, width) for width in (16, 64, 256, 1024))


def gelu_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's CNN with GELU and average pooling."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.GELU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.GELU(), nn.Linear(120, 84), nn.GELU(), nn.Linear(84, classes),
    )  # fmt: skip
