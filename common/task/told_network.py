"""A network that is told something beside an example, such as the block: every layer that can take it in does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perennial.common.command.errors import InputError
from perennial.common.data.examples import BLOCK


class ToldNetwork(nn.Module):
    """``network``, layers in sequence, with what it is told as an input of its first layer and of all Linear ones.

    Such a layer adds a linear function of what it is told. A block is told as a one-hot, beside which a bias would be
    one too many: the layer then has a bias for each block, in the place of its own. A convolution is told the same at
    every pixel. The initial network answers as ``network`` does, whatever it is told.
    """

    def __init__(self, network: nn.Module, told: str, numbers: int) -> None:
        super().__init__()
        if not isinstance(network, nn.Sequential):
            raise InputError(
                f"told: {told} takes a model that is an nn.Sequential, got {type(network).__name__}; write a task "
                "whose network takes what it is told as its last input"
            )
        self.network, self.told = network, told
        self.facts = nn.ModuleDict({name: _fact(layer, told, numbers) for name, layer in _listening(network).items()})
        if not self.facts:
            raise InputError(f"told: {told} needs a model with a Linear or convolutional layer that has a bias")

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        for name, layer in self.network.named_children():
            x = layer(x)
            if name in self.facts:
                fact = self.facts[name](told)
                between = [1] * (x.ndim - 2)
                last = isinstance(layer, nn.Linear)
                x = x + fact.reshape(len(x), *between, -1) if last else x + fact.reshape(len(x), -1, *between)
        return x


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _listening(network: nn.Sequential) -> dict[str, nn.Linear]:
    """Return the layers that take in what is told, by name: the first one and the Linear ones, if they have a bias."""
    layers = {name: layer for name, layer in network.named_children() if isinstance(layer, _LAYERS)}
    first = next(iter(layers), "")
    return {
        name: layer  # type: ignore[misc]
        for name, layer in layers.items()
        if layer.bias is not None and (name == first or isinstance(layer, nn.Linear))
    }


def _fact(layer: nn.Linear, told: str, numbers: int) -> nn.Linear:
    fact = nn.Linear(numbers, len(layer.bias), bias=False)
    with torch.no_grad():
        fact.weight.zero_()
        if told == BLOCK:
            fact.weight += layer.bias[:, None]
            layer.bias = None  # type: ignore[assignment]
    return fact
