"""Models by name, as networks of torch modules: ``cnn``, ``mlp``, ``linear`` or ``package.module:factory``."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from collections.abc import Callable
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from perennial.common.command.errors import InputError

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]


def cnn(shape: Shape, classes: int) -> nn.Module:
    """The paper's network: PyTorch's tutorial CNN; 62,006 parameters for (3, 32, 32) and 10 classes."""
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise InputError(
            f"model cnn needs images of at least 16x16 as (channels, height, width), got shape {shape}; use mlp"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    layers = [
        ("conv1", nn.Conv2d(shape[0], 6, 5)),
        ("relu1", nn.ReLU()),
        ("pool1", nn.MaxPool2d(2, 2)),
        ("conv2", nn.Conv2d(6, 16, 5)),
        ("relu2", nn.ReLU()),
        ("pool2", nn.MaxPool2d(2, 2)),
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(16 * height * width, 120)),
        ("relu3", nn.ReLU()),
        ("fc2", nn.Linear(120, 84)),
        ("relu4", nn.ReLU()),
        ("fc3", nn.Linear(84, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """One hidden layer of 64: enough for digits."""
    layers = [
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(prod(shape), 64)),
        ("relu", nn.ReLU()),
        ("fc2", nn.Linear(64, classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def linear(shape: Shape, classes: int) -> nn.Module:
    """Softmax regression with zero initial weights: convex, and the same start for everyone."""
    network = nn.Sequential(OrderedDict([("flatten", nn.Flatten()), ("fc", nn.Linear(prod(shape), classes))]))
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    return network


NAMED: dict[str, Factory] = {"cnn": cnn, "mlp": mlp, "linear": linear}


def default_for(shape: Shape) -> str:
    """cnn where the images are large enough for it, else mlp."""
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 16 else "mlp"


def factory(name: str) -> Factory:
    """Return the factory that ``name`` stands for."""
    if name in NAMED:
        return NAMED[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise InputError(f"model must be one of {', '.join(NAMED)} or package.module:factory, got {name!r}")
    try:
        found: Factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"model {name!r} cannot be imported: {error}; is its package installed here?") from error
    return found


def build(name: str, shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """Return the network with the initial weights that ``seed`` gives, checked to fit the data.

    A factory is called as factory(shape, classes) and must return a module that maps (n, *shape) to (n, classes).
    """
    # Initialisers draw from torch's global generator; the fork leaves the caller's untouched.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _made(name, shape, classes)
    if not isinstance(network, nn.Module):
        raise InputError(f"model {name!r} must return a torch nn.Module, got {type(network).__name__}")
    for key, value in network.state_dict().items():
        if value.dtype != torch.float32:
            raise InputError(
                f"model {name!r}: {key} is {value.dtype}, and only float32 can be averaged over clients "
                "(BatchNorm counts batches in int64: use GroupNorm)"
            )
    _check_output(network, name, shape, classes)
    return network


def _made(name: str, shape: Shape, classes: int) -> nn.Module:
    make = factory(name)
    try:
        return make(shape, classes)
    except InputError:
        raise
    except Exception as error:  # someone else's code: whatever it raises says that the factory does not fit
        raise InputError(f"model {name!r} could not be made with factory({shape}, {classes}): {error}") from error


def arrays_of(network: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Return the module's state as NumPy arrays that share its memory."""
    return {key: value.detach().numpy() for key, value in network.state_dict().items()}


def _check_output(network: nn.Module, name: str, shape: Shape, classes: int) -> None:
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            output = network(torch.zeros(2, *shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise InputError(f"model {name!r} does not take data of shape {shape}: {error}") from error
    finally:
        network.train(was_training)
    if not isinstance(output, torch.Tensor) or output.shape != (2, classes):
        got = tuple(output.shape[1:]) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(f"model {name!r} must give one output for each of the {classes} classes, got {got}")
