"""Training engines, and the choice between them: native before stacked before loop."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np
import torch
from torch import nn

from perennial.client.engines.compiler import NoCompiler
from perennial.client.engines.engine import Engine, Received, Work
from perennial.client.engines.loop import LoopEngine
from perennial.client.engines.native import NativeEngine
from perennial.client.engines.network import Unsupported
from perennial.client.engines.stacked import StackedEngine
from perennial.common.command.config import ENGINES
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import AUTO


def choose(name: str, module: nn.Module, shape: tuple[int, ...], threads: int = 1) -> Engine:
    """Return the engine called ``name``; ``auto`` is the fastest that trains ``module`` on examples of ``shape``.

    threads: over which the native engine spreads its clients.
    """
    if any(parameter._backward_hooks for parameter in module.parameters()):
        raise InputError("the model has hooks on its parameters, which no copy of it keeps; put them on its modules")
    if name == AUTO:
        return _fastest(module, shape, threads)
    if name == "loop":
        return LoopEngine(module)
    try:
        if name == "stacked":
            return _stacked(module, shape)
        if name == "native":
            return NativeEngine(module, shape, threads)
    except Unsupported as error:
        raise InputError(f"engine {name} does not take this model: {error}; use engine auto") from error
    except NoCompiler as error:
        raise InputError(
            f"engine {name} cannot be built: {error}; install a C++ compiler or use engine auto"
        ) from error
    raise InputError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")


def _fastest(module: nn.Module, shape: tuple[int, ...], threads: int) -> Engine:
    try:
        return NativeEngine(module, shape, threads)
    except NoCompiler as error:
        _warn_once(f"native engine not available ({error}); using a slower one")
    except Unsupported:
        pass
    try:
        return _stacked(module, shape)
    except Unsupported:
        return LoopEngine(module)


@cache
def _warn_once(message: str) -> None:
    logging.getLogger("perennial").warning(message)


def _stacked(module: nn.Module, shape: tuple[int, ...]) -> StackedEngine:
    """Return the engine after a trial step with two clients: what vmap takes shows only when it runs."""
    engine = StackedEngine(module)
    state = [value.detach().reshape(-1) for value in module.state_dict().values()]
    x, rows = np.zeros((2, *shape), np.float32), np.array([[0, 1]])
    work = [Work(client, x, np.zeros(2, np.int64), rows, rows[0]) for client in (0, 1)]
    try:
        with torch.random.fork_rng(devices=[]):
            engine.train([Received(torch.cat(state).cpu().numpy(), 0.0)], work)
    except (RuntimeError, ValueError) as error:
        raise Unsupported(f"vmap refuses it ({str(error).splitlines()[0]})") from error
    return engine
