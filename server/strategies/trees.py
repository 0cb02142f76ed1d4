"""State as trees of plain values and NumPy arrays, which a checkpoint can keep without pickles."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

Tree = dict[str, Any]


def array_tree(record: ArrayRecord) -> Tree:
    """Return the arrays by name, and the names in their order: clients may read arrays by position."""
    return {"names": list(record), "arrays": {name: array.numpy() for name, array in record.items()}}


def arrays_of(tree: Tree) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(tree["arrays"][name])) for name in tree["names"]})


def metric_tree(metrics: MetricRecord | None) -> Tree | None:
    return None if metrics is None else dict(metrics)


def metrics_of(tree: Tree | None) -> MetricRecord | None:
    return None if tree is None else MetricRecord(tree)


class RunningConfig:
    """A config record that a strategy may change from round to round; the user's own stays as it was given."""

    def __init__(self, given: ConfigRecord) -> None:
        self._given = copy.deepcopy(given)
        self.record = copy.deepcopy(given)

    def state(self) -> Tree:
        return {"given": dict(self._given), "now": dict(self.record)}

    def load(self, state: Tree) -> None:
        """Go on with what the strategy made of the config, unless the user gave another one this time."""
        if state["given"] == dict(self._given):
            self.record = ConfigRecord(copy.deepcopy(state["now"]))


def generators_tree() -> Tree:
    """Return the states of Python's and NumPy's own generators, from which strategies draw nodes and noise."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the one that Flower's strategies draw from
    return {"python": {"version": version, "words": np.array(words), "gauss": gauss}, "numpy": copy.deepcopy(numpy_state)}


def set_generators(tree: Tree) -> None:
    python = tree["python"]
    random.setstate((python["version"], tuple(int(word) for word in python["words"]), python["gauss"]))
    np.random.set_state(tree["numpy"])  # noqa: NPY002 - the one that Flower's strategies draw from
