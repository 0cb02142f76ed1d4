"""Centralised evaluation: every predictor on its own block's test set."""

from __future__ import annotations

import copy
import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import nn

from perennial.common.command.errors import RunError
from perennial.common.data.datasets import Shard, Shards
from perennial.common.data.examples import Inputs, Targets
from perennial.common.data.partition import Rows
from perennial.common.task.learning_task import Task
from perennial.common.task.ready import classification
from perennial.common.wire.arrays import decode
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout

_BATCH = 250


LOG = logging.getLogger("perennial")
# Tells for each of ``rows`` of x and y what the score makes of the model's answer: for accuracy, whether it is right.
# Called from several threads.
Right = Callable[[Vector, Inputs, Targets, Rows], NDArray[np.bool_] | NDArray[np.float64]]


class TorchRight:
    """``Right`` by torch, for any module and the score of any task."""

    def __init__(self, network: nn.Module, layout: Layout, task: Task = classification) -> None:
        self._network, self._layout, self._task = network, layout, task
        # A copy for each thread: for the time of a call, functional_call puts the model's weights into the module.
        self._copies = threading.local()
        # Evaluators bring threads of their own: torch's wait by spinning, which on a busy machine takes ages.
        torch.set_num_threads(1)

    def __call__(self, model: Vector, x: Inputs, y: Targets, rows: Rows) -> NDArray[np.float64]:
        state = {name: torch.from_numpy(array.copy()) for name, array in self._layout.unflatten(model).items()}
        inputs, target = self._task.batch(x, y, rows)
        with torch.inference_mode():
            # What layers share has a tensor for each of its names here, all alike.
            answers = torch.func.functional_call(self._own(), state, inputs, tie_weights=False)
            return np.asarray(self._task.score.each(answers, target).double().numpy())

    def _own(self) -> nn.Module:
        """Return this thread's copy."""
        if not hasattr(self._copies, "network"):
            self._copies.network = copy.deepcopy(self._network).eval()
        network: nn.Module = self._copies.network
        return network


_Key = tuple[int, ...]


def _key(model: ArrayRecord) -> _Key:
    """Return what tells a model from another: the arrays of a record never change."""
    return tuple(map(id, model.values()))


class Evaluator:
    """Keeps what it found of each model: readers share models, and most predictors change seldom."""

    def __init__(self, right: Right, shards: Shards, layout: Layout) -> None:
        self._right, self._layout = right, layout
        self._tests = [shards.test(block) for block in range(shards.blocks)]
        missing = [str(block) for block, test in enumerate(self._tests) if test is None]
        if missing and len(missing) < shards.blocks:
            LOG.warning("nothing is evaluated: block %s has no test set, others have one", ", ".join(missing))
        self._known: dict[_Key, tuple[ArrayRecord, dict[int, float]]] = {}
        self._threads = ThreadPoolExecutor(os.cpu_count())

    def accuracies(self, readers: Sequence[Sequence[ArrayRecord]]) -> list[list[float]] | None:
        """Return, for each reader, the score of every block's predictor; None if a block has no test set.

        Of the task classification the score is the accuracy.
        """
        if any(test is None for test in self._tests):
            return None
        wanted: dict[_Key, tuple[ArrayRecord, set[int]]] = {}
        for models in readers:
            for block, model in enumerate(models):
                wanted.setdefault(_key(model), (model, set()))[1].add(block)
        # The model is kept with what is known of it, so that the ids of its arrays stay their own.
        known = {key: self._known.get(key, (model, {})) for key, (model, _) in wanted.items()}
        for key, (model, blocks) in wanted.items():
            if missing := sorted(blocks - known[key][1].keys()):
                known[key][1].update(self._judge(decode(model, self._layout, "predictor"), missing))
        self._known = known
        return [[known[_key(model)][1][block] for block, model in enumerate(models)] for models in readers]

    def _judge(self, model: Vector, blocks: Sequence[int]) -> dict[int, float]:
        """Return the model's score on several blocks; test sets cut from the same arrays are gone through once."""
        tests = {block: test for block in blocks if (test := self._tests[block]) is not None}
        by_source: dict[tuple[int, ...], list[int]] = {}
        for block, test in tests.items():
            by_source.setdefault((*map(id, test.x), id(test.y)), []).append(block)
        found: dict[int, float] = {}
        for members in by_source.values():
            rows = np.unique(np.concatenate([tests[block].rows for block in members]))
            each = self._all(model, tests[members[0]], rows)
            for block in members:
                found[block] = float(each[np.searchsorted(rows, tests[block].rows)].mean())
                if not math.isfinite(found[block]):
                    raise RunError(
                        f"the score of the predictor of block {block} is {found[block]}; lower the learning rate, or "
                        "have the score give a number for every answer"
                    )
        return found

    def _all(self, model: Vector, test: Shard, rows: Rows) -> NDArray[Any]:
        batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
        return np.concatenate(list(self._threads.map(lambda batch: self._right(model, test.x, test.y, batch), batches)))
