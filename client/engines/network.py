"""Reads a torch module as the layers that the native kernels have, and writes them down for the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from torch import nn

Pair = tuple[int, int]
Shape = tuple[int, int, int]


class Unsupported(ValueError):
    """The module has a layer that an engine cannot train; the message names it."""


@dataclass(frozen=True)
class Layer:
    """One kernel: what it reads, (channels, height, width), and what it writes."""

    kind: str
    reads: Shape
    writes: Shape
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    bias: bool = False
    relu: bool = False
    pooled: bool = False


def read(module: nn.Module, shape: tuple[int, ...]) -> list[Layer]:
    """Return the kernels that compute ``module`` on examples of ``shape``, activations and 2x2 pools fused in."""
    layers: list[Layer] = []
    flat = len(shape) == 1
    now = _as_image(shape)
    seen: set[int] = set()
    for name, part in _parts(module):
        parameters = {id(parameter) for parameter in part.parameters()}
        _require(not parameters & seen, name, "shares its parameters with another layer")
        seen |= parameters
        if type(part) is nn.Flatten and part.start_dim == 1 and part.end_dim == -1:
            flat = True
        elif type(part) is nn.ReLU:
            layers = _with_relu(layers, now)
        elif type(part) is nn.Linear and flat:
            _require(prod(now) == part.in_features, name, f"takes {part.in_features} features, got {prod(now)}")
            layers.append(Layer("Linear", now, (part.out_features, 1, 1), bias=part.bias is not None))
        elif type(part) is nn.Conv2d and not flat:
            layers.append(_conv(name, part, now))
        elif type(part) is nn.MaxPool2d and not flat:
            layers = _with_pool(layers, _pool(name, part, now))
        elif type(part) is nn.GELU and part.approximate == "none":
            layers.append(Layer("Gelu", now, now))
        elif type(part) is nn.AvgPool2d and not flat:
            layers.append(_average(name, part, now))
        elif type(part) is not nn.Identity:
            raise Unsupported(f"layer {name} ({type(part).__name__}) has no native kernel here")
        now = layers[-1].writes if layers else now
    # The last kernel writes channels alone: a flattened image would lose its place.
    _require(now[1:] == (1, 1), "output", "is an image, or one that was flattened; end with Flatten and Linear")
    _require(any(layer.kind in ("Conv", "Linear") for layer in layers), "network", "has no parameters")
    return layers


def header(layers: list[Layer]) -> str:
    """Return the C++ types of the network; an activation has the border that its reader's padding asks for."""
    borders = [layer.padding if layer.kind == "Conv" else (0, 0) for layer in layers] + [(0, 0)]
    boxes = [_box(layer.reads, border) for layer, border in zip(layers, borders, strict=False)]
    boxes.append(_box(layers[-1].writes, (0, 0)))
    kinds = ",\n    ".join(_type(layer, *boxes[at : at + 2]) for at, layer in enumerate(layers))
    return f"#pragma once\nusing Layers = std::tuple<\n    {kinds}>;\nusing Output = {boxes[-1]};\n"


def _parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    name = prefix or "network"
    _require(not _is_hooked(module), name, "has hooks or parametrizations")
    if type(module) is nn.Sequential:
        # Not named_children(), which leaves out a module that stands there a second time.
        for name, child in module._modules.items():
            assert child is not None
            yield from _parts(child, f"{prefix}.{name}" if prefix else name)
        return
    _require(all(parameter.requires_grad for parameter in module.parameters()), name, "has frozen parameters")
    yield name, module


def _is_hooked(module: nn.Module) -> bool:
    """Whether something of the user's runs when the module is used."""
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(own) or hasattr(module, "parametrizations")


def _as_image(shape: tuple[int, ...]) -> Shape:
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    return prod(shape), 1, 1


def _conv(name: str, part: nn.Conv2d, now: Shape) -> Layer:
    zeros = part.padding_mode == "zeros" and not isinstance(part.padding, str)
    plain = zeros and part.groups == 1 and _pair(part.dilation) == (1, 1)
    _require(plain, name, "needs groups=1, dilation=1 and zero padding in numbers")
    _require(part.in_channels == now[0], name, f"takes {part.in_channels} channels, got {now[0]}")
    kernel, stride, padding = _pair(part.kernel_size), _pair(part.stride), _pair(part.padding)
    writes = (part.out_channels, *_sides(name, now, kernel, stride, padding))
    return Layer("Conv", now, writes, kernel, stride, padding, bias=part.bias is not None)


def _pool(name: str, part: nn.MaxPool2d, now: Shape) -> Layer:
    plain = _pair(part.dilation) == (1, 1) and not part.ceil_mode and not part.return_indices
    _require(plain, name, "needs dilation=1, ceil_mode=False and return_indices=False")
    kernel, stride, padding = _pair(part.kernel_size), _pair(part.stride), _pair(part.padding)
    return Layer("Pool", now, (now[0], *_sides(name, now, kernel, stride, padding)), kernel, stride, padding)


def _average(name: str, part: nn.AvgPool2d, now: Shape) -> Layer:
    plain = _pair(part.padding) == (0, 0) and not part.ceil_mode and part.divisor_override is None
    _require(plain, name, "needs padding=0, ceil_mode=False and no divisor_override")
    kernel, stride = _pair(part.kernel_size), _pair(part.stride)
    return Layer("Average", now, (now[0], *_sides(name, now, kernel, stride, (0, 0))), kernel, stride)


def _with_relu(layers: list[Layer], now: Shape) -> list[Layer]:
    if layers and layers[-1].kind in ("Conv", "Linear"):
        return [*layers[:-1], replace(layers[-1], relu=True)]
    return [*layers, Layer("Relu", now, now)]


def _with_pool(layers: list[Layer], pool: Layer) -> list[Layer]:
    simple = (pool.kernel, pool.stride, pool.padding) == ((2, 2), (2, 2), (0, 0))
    if simple and layers and layers[-1].kind == "Conv" and not layers[-1].pooled:
        return [*layers[:-1], replace(layers[-1], pooled=True, writes=pool.writes)]
    return [*layers, pool]


def _sides(name: str, now: Shape, kernel: Pair, stride: Pair, padding: Pair) -> Pair:
    height, width = ((now[1 + d] + 2 * padding[d] - kernel[d]) // stride[d] + 1 for d in (0, 1))
    _require(min(height, width) > 0, name, f"leaves nothing of an image of {now[1]}x{now[2]}")
    return height, width


def _box(shape: Shape, border: Pair) -> str:
    return f"Box<{', '.join(map(str, shape + border))}>"


def _type(layer: Layer, reads: str, writes: str) -> str:
    numbers = [*layer.kernel, *layer.stride]
    if layer.kind == "Conv":
        numbers += [int(layer.bias), int(layer.relu), 2 if layer.pooled else 1]
    elif layer.kind == "Pool":
        numbers += layer.padding
    elif layer.kind == "Linear":
        numbers = [int(layer.bias), int(layer.relu)]
    elif layer.kind != "Average":
        numbers = []
    return f"{layer.kind}<{', '.join([reads, writes, *map(str, numbers)])}>"


def _pair(value: object) -> Pair:
    if isinstance(value, tuple):
        return int(value[0]), int(value[1])
    assert isinstance(value, int)
    return value, value


def _require(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise Unsupported(f"layer {name} {what}")
