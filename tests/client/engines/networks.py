"""Random networks of the layers that the native engine has."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn

Draw = st.DrawFn


@dataclass(frozen=True)
class Case:
    """A network, the shape of its examples and its number of classes."""

    module: nn.Module
    shape: tuple[int, ...]
    classes: int


activations = st.sampled_from([nn.ReLU, nn.GELU]).map(lambda kind: kind())


@st.composite
def networks(draw: Draw) -> Case:
    """Up to two convolutions, each with or without bias, an activation and a pool, then up to two linear layers."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    shape = (draw(st.sampled_from([1, 3, 5, 16])), draw(st.integers(7, 20)), draw(st.integers(7, 20)))
    layers: list[nn.Module] = []
    if draw(st.integers(0, 9)) == 0:
        layers.append(draw(st.sampled_from([nn.ReLU(), nn.GELU(), nn.MaxPool2d(2), nn.AvgPool2d(2)])))
    for _ in range(draw(st.integers(0, 2))):
        layers += draw(convolutions(_size(layers, shape)))
    layers.append(nn.Flatten())
    classes = draw(st.integers(2, 21))
    if draw(st.booleans()):
        hidden = draw(st.integers(1, 40))
        layers += [nn.Linear(_size(layers, shape).numel(), hidden, bias=draw(st.booleans())), draw(activations)]
    layers.append(nn.Linear(_size(layers, shape).numel(), classes, bias=draw(st.booleans())))
    return Case(nn.Sequential(*layers), shape, classes)


@st.composite
def convolutions(draw: Draw, size: torch.Size) -> list[nn.Module]:
    kernel = tuple(draw(st.integers(1, min(5, side))) for side in size[1:])
    stride = draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 2), (3, 1)]))
    padding = tuple(draw(st.integers(0, min(2, side))) for side in kernel)
    outputs = draw(st.sampled_from([1, 4, 6, 7, 16, 20, 33]))
    conv = nn.Conv2d(size[0], outputs, kernel, stride, padding, bias=draw(st.booleans()))
    layers: list[nn.Module] = [conv]
    if draw(st.booleans()):
        layers.append(draw(activations))
    sides = _size(layers, tuple(size))[1:]
    pools = [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, padding=1),
        nn.MaxPool2d((1, 2), 1),
        nn.AvgPool2d(2),
        nn.AvgPool2d((3, 2), 1),
    ]
    fitting = [pool for pool in pools if min(sides) >= 3]
    if fitting and draw(st.booleans()):
        layers.append(draw(st.sampled_from(fitting)))
    if draw(st.booleans()):
        layers.append(draw(activations))
    return layers


def _size(layers: list[nn.Module], shape: tuple[int, ...]) -> torch.Size:
    with torch.no_grad():
        return nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1:]
