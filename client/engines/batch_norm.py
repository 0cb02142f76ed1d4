"""BatchNorm that replaces its running statistics by new ones: vmap refuses what changes them in place.

Shapes: B examples, C channels, then any.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def out_of_place(module: nn.Module) -> list[str]:
    """Let the BatchNorm layers of ``module`` train without changing a tensor; return the buffers that they renew."""
    renewed = []
    for prefix, part in module.named_modules():
        if type(part) in _KINDS:
            part.forward = MethodType(_forward, part)
            renewed += [f"{prefix}.{name}" if prefix else name for name, _ in part.named_buffers()]
    return renewed


def _forward(self: Any, x: Tensor) -> Tensor:
    if not self.training:
        found: Tensor = type(self).forward(self, x)
        return found
    self._check_input_dim(x)
    over = [0, *range(2, x.ndim)]
    count = x.numel() // x.shape[1]
    if count < 2:
        raise ValueError("BatchNorm needs more than one value for each channel in training; use a larger batch-size")
    variance, mean = torch.var_mean(x, over, correction=0)
    if self.track_running_stats:
        _renew(self, mean.detach(), variance.detach() * (count / (count - 1)))
    shape = [1, -1, *[1] * (x.ndim - 2)]
    scale = torch.rsqrt(variance + self.eps)
    if self.affine:
        scale = scale * self.weight
    moved = (x - mean.view(shape)) * scale.view(shape)
    return moved + self.bias.view(shape) if self.affine else moved


def _renew(self: Any, mean: Tensor, variance: Tensor) -> None:
    self.num_batches_tracked = self.num_batches_tracked + 1
    taken = 1.0 / self.num_batches_tracked if self.momentum is None else self.momentum
    self.running_mean = (1 - taken) * self.running_mean + taken * mean
    self.running_var = (1 - taken) * self.running_var + taken * variance
