"""Models by name, as networks of torch modules: ``cnn``, ``mlp``, ``linear`` or ``package.module:factory``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import nn

from perennial.common.command.errors import InputError
from perennial.common.command.naming import imported, is_name
from perennial.common.wire.layout import FLOAT, MOST_WHOLE, WHOLE

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]


def cnn(shape: Shape, outputs: int) -> nn.Module:
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
        ("fc3", nn.Linear(84, outputs)),
    ]
    return nn.Sequential(OrderedDict(layers))


def mlp(shape: Shape, outputs: int) -> nn.Module:
    """One hidden layer of 64: enough for digits."""
    layers = [
        ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(prod(shape), 64)),
        ("relu", nn.ReLU()),
        ("fc2", nn.Linear(64, outputs)),
    ]
    return nn.Sequential(OrderedDict(layers))


def linear(shape: Shape, outputs: int) -> nn.Module:
    """Softmax regression with zero initial weights: convex, and the same start for everyone."""
    network = nn.Sequential(OrderedDict([("flatten", nn.Flatten()), ("fc", nn.Linear(prod(shape), outputs))]))
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
    if not is_name(name):
        raise InputError(f"model must be one of {', '.join(NAMED)} or package.module:factory, got {name!r}")
    return cast(Factory, imported("model", name))


def build(name: str, shape: Shape, outputs: int, seed: int = 0, *, examples: torch.Tensor | None = None) -> nn.Module:
    """Return the network with the initial weights that ``seed`` gives, checked to fit the data.

    A factory is called as factory(shape, outputs) and must return a module that maps (n, *shape) to (n, outputs).
    examples: two of them, if they are not floats.
    """
    make = factory(name)
    network = seeded(lambda: make(shape, outputs), f"model {name!r}", seed)
    _check_output(network, name, torch.zeros(2, *shape) if examples is None else examples, outputs)
    return network


def seeded(make: Callable[[], nn.Module], what: str, seed: int) -> nn.Module:
    """Return the network that ``make`` makes, with the initial weights that ``seed`` gives; ``what`` it is."""
    # Initialisers draw from torch's global generator; the fork leaves the caller's untouched.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = make()
        except InputError:
            raise
        except Exception as error:  # someone else's code: whatever it raises says that it does not fit
            raise InputError(f"{what} could not be made: {error}") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"{what} must return a torch nn.Module, got {type(network).__name__}")
    for key, value in network.state_dict().items():
        _check_kind(value, f"{what}: {key}")
    return network


def _check_kind(value: torch.Tensor, what: str) -> None:
    """Refuse what cannot be averaged over clients, or not be kept as it is in a model's float32 vector."""
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in (FLOAT, *WHOLE):
        raise InputError(f"{what} is {kind}; parameters and buffers must be {FLOAT}, whole numbers or flags")
    if kind != FLOAT and value.numel() and int(value.abs().max() if kind != "bool" else 0) > MOST_WHOLE:
        raise InputError(f"{what} has whole numbers above {MOST_WHOLE}, the largest that every engine keeps exactly")


def arrays_of(network: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the module's state as NumPy arrays that share its memory."""
    return {key: value.detach().numpy() for key, value in network.state_dict().items()}


def _check_output(network: nn.Module, name: str, examples: torch.Tensor, outputs: int) -> None:
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            output = network(examples)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        kind = "" if examples.dtype == torch.float32 else f" and of {str(examples.dtype).removeprefix('torch.')}"
        raise InputError(
            f"model {name!r} does not take data of shape {tuple(examples.shape[1:])}{kind}: {error}"
        ) from error
    finally:
        network.train(was_training)
    if not isinstance(output, torch.Tensor) or output.shape != (2, outputs):
        got = tuple(output.shape[1:]) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(f"model {name!r} must give {outputs} outputs for each example, got {got}")
