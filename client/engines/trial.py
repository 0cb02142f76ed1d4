"""Which engine is fastest, found by a short trial, and which are right: those that train as the loop does."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from perennial.client.engines.engine import Engine, Received, Work
from perennial.client.engines.loop import LoopEngine
from perennial.client.engines.network import Unsupported
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Shards
from perennial.common.data.examples import Signature
from perennial.common.task.learning_task import Task
from perennial.common.task.models import arrays_of
from perennial.common.wire.layout import Layout
from perennial.common.wire.seeding import generator

LOG = logging.getLogger("perennial")
# The trial takes at most so many clients and steps of each, and as many turns as fit into the seconds.
CLIENTS, STEPS, TURNS, SECONDS = 16, 2, 4, 1.0
_LR = 0.01
# Clients whose data is looked at: a simulated node may stand for very many.
_MOST = 256
# Of what a step moves. Engines differ in the last bits, and a ReLU may stand on its kink; dropout's masks or running
# statistics of another kind move all of it elsewhere.
_APART = 0.05
# An engine that comes later in the order must be faster by this.
_CLEARLY = 0.95


@dataclass(frozen=True)
class Load:
    """What an engine is chosen for. work: what a node's clients have to do in a round, as it will be asked for.

    steps: of all clients of the node in all rounds to come; 0: nobody knows.
    """

    work: tuple[Work, ...]
    steps: int = 0


def start(module: nn.Module) -> Received:
    """Return the module's own weights as a model to train from."""
    arrays = arrays_of(module)
    return Received(Layout.of(arrays).flatten(arrays), _LR)


def zeros(signature: Signature) -> list[Work]:
    """Return two clients with two examples each, for those who have no data yet."""
    (x, y), rows = signature.zeros(2), np.array([[0, 1]])
    return [Work(client, x, y, rows, rows[0], client) for client in (0, 1)]


def shortened(work: Sequence[Work], clients: int, steps: int) -> list[Work]:
    return [replace(one, steps=one.steps[:steps], judged=one.judged[:0]) for one in work[:clients]]


def check_step(module: nn.Module, task: Task, work: Sequence[Work]) -> None:
    """Raise InputError unless one client can take one step by engine loop, which takes all that torch can train."""
    try:
        LoopEngine(module, task).train([start(module)], shortened(work, 1, 1))
    except InputError:
        raise
    except Exception as error:  # someone else's code: whatever it raises says that it cannot be trained
        reason = " ".join(str(error).split())[:300]
        raise InputError(
            f"the network of task {task.name} cannot be trained on batches of {work[0].steps.shape[1]}: {reason}"
        ) from error


def load_of(shards: Shards, clients: Sequence[int], config: RunConfig) -> Load | None:
    """Return what these clients of a node will have to do in a round; None if none of them has data."""
    rng, some = generator(config.seed, "trial"), clients[:_MOST]
    for block in range(shards.blocks):
        found = [(client, shard) for client in some if len((shard := shards.shard(client, block)).rows)]
        if found:
            break
    else:
        return None
    work = []
    for client, shard in found:
        size = (config.local_iterations, config.batch_size)
        steps = rng.choice(shard.rows, size) if config.batch_size else np.tile(shard.rows, (size[0], 1))
        work.append(Work(client, shard.x, shard.y, steps, shard.rows[:0], client))
    rounds = 0 if config.clock else config.cycles * config.blocks * config.rounds_per_block
    # Of one chain, whatever the strategy: those that train the same chain must train it by the same engine.
    return Load(tuple(work), rounds * len(clients) * config.local_iterations)


def check_right(engine: Engine, module: nn.Module, task: Task, work: Sequence[Work]) -> None:
    """Raise Unsupported unless two clients' first two steps end where the loop ends."""
    received, some = start(module), shortened(work, 2, 2)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            (found,) = engine.train([received], some)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise Unsupported(f"it fails in a step ({' '.join(str(error).split())[:200]})") from error
    (expected,) = LoopEngine(module, task).train([received], some)
    moved = np.linalg.norm(expected.params.astype(np.float64) - received.params)
    apart = np.linalg.norm(found.params.astype(np.float64) - expected.params)
    if apart > _APART * moved + 1e-6 * np.linalg.norm(received.params):
        raise Unsupported("it ends elsewhere than engine loop after two steps")


def fastest(
    engines: Sequence[Engine], module: nn.Module, work: Sequence[Work], *, whole: bool = False
) -> tuple[Engine, float]:
    """Return the engine with the quickest turn, the first of equals, and its seconds for a step of a client.

    whole: all clients take part, since compiled code is for their number.
    """
    received, some = start(module), shortened(work, len(work) if whole else CLIENTS, STEPS)
    best = [float("inf")] * len(engines)
    if len(engines) == 1:
        return engines[0], 0.0
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(TURNS):
            for at, engine in enumerate(engines):
                before = time.perf_counter()
                engine.train([received], some)
                best[at] = min(best[at], time.perf_counter() - before)
            if turn and time.perf_counter() - began > SECONDS:
                break
    chosen = 0
    for at in range(1, len(engines)):
        if best[at] < _CLEARLY * best[chosen]:
            chosen = at
    steps = sum(len(one.steps) for one in some)
    told = ", ".join(f"{one.name} {seconds / steps * 1e3:.3g}" for one, seconds in zip(engines, best, strict=True))
    LOG.info("engine %s is the fastest here (ms for a step of a client: %s)", engines[chosen].name, told)
    return engines[chosen], best[chosen] / steps
