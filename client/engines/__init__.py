"""Training engines, and the choice between them: native before compiled before stacked before loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from torch import nn

from perennial.client.engines import kept_choice, trial
from perennial.client.engines.compiled import CompiledEngine
from perennial.client.engines.compiler import NoCompiler
from perennial.client.engines.engine import Engine, Work
from perennial.client.engines.loop import LoopEngine
from perennial.client.engines.native import NativeEngine
from perennial.client.engines.network import Unsupported
from perennial.client.engines.stacked import StackedEngine
from perennial.client.engines.told_native import ToldNativeEngine
from perennial.client.engines.trial import Load
from perennial.common.command.config import ENGINES
from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import imported, is_name
from perennial.common.command.typed_keys import AUTO
from perennial.common.data.examples import Signature
from perennial.common.task.learning_task import Task, collate
from perennial.common.task.local_optimisers import PLAIN
from perennial.common.task.ready import classification, cross_entropy
from perennial.common.task.told_network import ToldNetwork

LOG = logging.getLogger("perennial")
# Compiling takes up to a minute, and a few seconds in each worker: it pays if the run would take this long stacked.
_LONG = 600.0


def choose(
    name: str,
    module: nn.Module,
    signature: Signature,
    threads: int = 1,
    task: Task = classification,
    load: Load | None = None,
    *,
    gpu: bool = False,
) -> Engine:
    """Return the engine called ``name``; ``auto`` is the fastest that trains ``module`` on such examples for ``task``.

    threads: over which the native engine spreads its clients. load: what to try engines on; without it ``auto`` is the
    first in the order of this module that is right. gpu: this process was given a GPU to use.
    """
    if any(parameter._backward_hooks for parameter in module.parameters()):
        raise InputError("the model has hooks on its parameters, which no copy of it keeps; put them on its modules")
    work = load.work if load else trial.zeros(signature)
    if load:
        trial.check_step(module, task, work)
    makers = _makers(module, signature, threads, task, work)
    if name == AUTO:
        if gpu:
            # It computes on CPUs alone.
            del makers["native"]
        return _fastest(makers, module, signature, threads, task, load)
    if is_name(name):
        makers[name] = partial(_own, name, module, task, work)
    if name not in makers:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    try:
        return makers[name]()
    except Unsupported as error:
        raise InputError(f"engine {name} does not take this model: {error}; use engine auto") from error
    except NoCompiler as error:
        raise InputError(
            f"engine {name} cannot be built: {error}; install a C++ compiler or use engine auto"
        ) from error


def _makers(
    module: nn.Module, signature: Signature, threads: int, task: Task, work: Sequence[Work]
) -> dict[str, Callable[[], Engine]]:
    """Return what makes each engine, or raises Unsupported or NoCompiler."""

    def stacked() -> Engine:
        engine = StackedEngine(module, task)
        trial.check_right(engine, module, task, work)
        return engine

    def compiled() -> Engine:
        # What is right stacked can be compiled, or falls back to it by itself.
        stacked()
        return CompiledEngine(module, task)

    return {
        "native": lambda: _native(module, signature, threads, task),
        "compiled": compiled,
        "stacked": stacked,
        "loop": lambda: LoopEngine(module, task),
    }


def _fastest(
    makers: dict[str, Callable[[], Engine]],
    module: nn.Module,
    signature: Signature,
    threads: int,
    task: Task,
    load: Load | None,
) -> Engine:
    if load is None:
        return next(_right(makers))
    place = kept_choice.place_of(module, signature, threads, task, load)
    if kept := kept_choice.read(place):
        try:
            return makers[kept]()
        except (KeyError, Unsupported, NoCompiler):
            kept_choice.forget(place)
    engine, seconds = trial.fastest(list(_right(makers)), module, load.work)
    if type(engine) is StackedEngine and load.steps * seconds > _LONG:
        LOG.info("the run is long: the step is compiled once, for up to a minute (torch.compile)")
        engine, _ = trial.fastest([engine, CompiledEngine(module, task)], module, load.work, whole=True)
    return makers[kept_choice.keep(place, engine.name)]()


def _right(makers: dict[str, Callable[[], Engine]]) -> Iterator[Engine]:
    """Yield the engines that train the model as the loop does and cost little to try, the loop last."""
    for name in (one for one in ("native", "stacked", "loop") if one in makers):
        try:
            yield makers[name]()
        except NoCompiler as error:
            _warn_once(f"native engine not available ({error}); using a slower one")
        except Unsupported as error:
            LOG.debug("engine %s does not take this model: %s", name, error)


def _own(name: str, module: nn.Module, task: Task, work: Sequence[Work]) -> Engine:
    """Return an engine of a user's own, if it trains right. Only a class is called: a server may send any name."""
    found = imported("engine", name)
    if not isinstance(found, type) or not {"train", "judge"} <= set(dir(found)):
        raise InputError(f"engine {name!r} must be a class with train and judge, got {shown(found)}")
    engine: Engine = found(module, task)
    trial.check_right(engine, module, task, work)
    return engine


@cache
def _warn_once(message: str) -> None:
    LOG.warning(message)


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
