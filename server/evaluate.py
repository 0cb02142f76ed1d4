"""Centralised evaluation: every predictor on its own block's test set."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from common.data import Shard, Shards, as_float
from common.layout import Layout
from server.psgd import Predictors, Vector

_BATCH = 500


class Evaluator:
    """Keeps what it found of a model: between two evaluations most predictors have not changed."""

    def __init__(self, network: nn.Module, layout: Layout, shards: Shards) -> None:
        self._network, self._layout = network.eval(), layout
        self._tests = [shards.test(block) for block in range(shards.blocks)]
        self._known: dict[int, tuple[Vector, float]] = {}

    def accuracies(self, predictors: Predictors, owner: int = 0) -> list[float] | None:
        """Return the accuracy of each block's predictor, or None where a block has no test set.

        owner: number of the reader whose predictors they are.
        """
        result = []
        for block, (model, test) in enumerate(zip(predictors.models, self._tests, strict=True)):
            if test is None:
                return None
            key = owner * len(self._tests) + block
            known = self._known.get(key)
            if known is None or known[0] is not model:
                same = [b for b, other in enumerate(predictors.models) if other is model]
                for one, accuracy in self._judge(model, same).items():
                    self._known[owner * len(self._tests) + one] = model, accuracy
            result.append(self._known[key][1])
        return result

    def _judge(self, model: Vector, blocks: list[int]) -> dict[int, float]:
        """Return the model's accuracy on several blocks; test sets cut from one array are gone through once."""
        tests = {block: test for block in blocks if (test := self._tests[block]) is not None}
        state = {name: torch.from_numpy(array.copy()) for name, array in self._layout.unflatten(model).items()}
        self._network.load_state_dict(state)
        found: dict[int, float] = {}
        by_source: dict[int, list[int]] = {}
        for block, test in tests.items():
            by_source.setdefault(id(test.x), []).append(block)
        for members in by_source.values():
            rows = np.unique(np.concatenate([tests[block].rows for block in members]))
            right = self._right(tests[members[0]], rows)
            for block in members:
                found[block] = float(right[np.searchsorted(rows, tests[block].rows)].mean())
        return found

    def _right(self, test: Shard, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        with torch.no_grad():
            guesses = [
                self._network(torch.from_numpy(as_float(test.x[rows[start : start + _BATCH]]))).argmax(1).numpy()
                for start in range(0, len(rows), _BATCH)
            ]
        right: NDArray[np.bool_] = np.concatenate(guesses) == test.y[rows]
        return right
