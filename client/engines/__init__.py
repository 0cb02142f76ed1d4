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
from perennial.client.engines.told_native import ToldNativeEngine
from perennial.common.command.config import ENGINES
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import AUTO
from perennial.common.data.examples import Signature
from perennial.common.task.learning_task import Task, collate
from perennial.common.task.local_optimisers import PLAIN
from perennial.common.task.ready import classification, cross_entropy
from perennial.common.task.told_network import ToldNetwork


def choose(
    name: str,
    module: nn.Module,
    signature: Signature,
    threads: int = 1,
    task: Task = classification,
    *,
    gpu: bool = False,
) -> Engine:
    """Return the engine called ``name``; ``auto`` is the fastest that trains ``module`` on such examples for ``task``.

    threads: over which the native engine spreads its clients. gpu: this process was given a GPU to use.
    """
    if any(parameter._backward_hooks for parameter in module.parameters()):
        raise InputError("the model has hooks on its parameters, which no copy of it keeps; put them on its modules")
    if name == AUTO:
        return _fastest(module, signature, threads, task, gpu=gpu)
    if name == "loop":
        return LoopEngine(module, task)
    try:
        if name == "stacked":
            return _stacked(module, signature, task)
        if name == "native":
            return _native(module, signature, threads, task)
    except Unsupported as error:
        raise InputError(f"engine {name} does not take this model: {error}; use engine auto") from error
    except NoCompiler as error:
        raise InputError(
            f"engine {name} cannot be built: {error}; install a C++ compiler or use engine auto"
        ) from error
    raise InputError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")


def _fastest(module: nn.Module, signature: Signature, threads: int, task: Task, *, gpu: bool) -> Engine:
    try:
        # It computes on CPUs alone.
        if not gpu:
            return _native(module, signature, threads, task)
    except NoCompiler as error:
        _warn_once(f"native engine not available ({error}); using a slower one")
    except Unsupported:
        pass
    try:
        return _stacked(module, signature, task)
    except Unsupported:
        return LoopEngine(module, task)


@cache
def _warn_once(message: str) -> None:
    logging.getLogger("perennial").warning(message)


def _native(module: nn.Module, signature: Signature, threads: int, task: Task) -> NativeEngine | ToldNativeEngine:
    """Return the engine if the task is what its kernels compute."""
    if task.loss is not cross_entropy or task.optimiser != PLAIN or task.collate is not collate:
        raise Unsupported(f"task {task.name} is not plain SGD on cross-entropy")
    examples = signature.x[:1] if isinstance(module, ToldNetwork) else signature.x
    if len(examples) != 1 or not set(examples[0].dtypes) <= {"uint8", "float32"}:
        raise Unsupported("examples must be one array of uint8 or float32")
    if isinstance(module, ToldNetwork):
        return ToldNativeEngine(module, examples[0].shape, threads)
    return NativeEngine(module, examples[0].shape, threads)


def _stacked(module: nn.Module, signature: Signature, task: Task) -> StackedEngine:
    """Return the engine after a trial step with two clients: what vmap takes shows only when it runs."""
    engine = StackedEngine(module, task)
    state = [value.detach().reshape(-1) for value in module.state_dict().values()]
    (x, y), rows = signature.zeros(2), np.array([[0, 1]])
    work = [Work(client, x, y, rows, rows[0]) for client in (0, 1)]
    try:
        with torch.random.fork_rng(devices=[]):
            engine.train([Received(torch.cat(state).cpu().numpy(), 0.0)], work)
    except (RuntimeError, ValueError) as error:
        raise Unsupported(f"vmap refuses it ({str(error).splitlines()[0]})") from error
    return engine
