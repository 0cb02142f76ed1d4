"""State as trees of plain values and NumPy arrays, which a checkpoint can keep without pickles."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

from perennial.server.run.tree import Later

Tree = dict[str, Any]


def array_tree(record: ArrayRecord) -> Tree:
    """Return the arrays by name, and the names in their order: clients may read arrays by position.

    The arrays are read when they are needed: what Flower calls an Array never changes.
    """
    return {"names": list(record), "arrays": {name: Later(array.numpy) for name, array in record.items()}}


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
        return {"given": _plain(self._given), "now": _plain(self.record)}

    def load(self, state: Tree) -> None:
        """Go on with what the strategy made of the config, unless the user gave another one this time."""
        if _config_of(state["given"]) == self._given:
            self.record = _config_of(state["now"])


def _plain(record: ConfigRecord) -> Tree:
    """Return a config record's values as a tree; bytes, which a tree does not have, as an array under their name."""
    return {name: [_coded(one) for one in value] if isinstance(value, list) else _coded(value)
            for name, value in record.items()}  # fmt: skip


def _coded(value: Any) -> Any:
    return {"bytes": np.frombuffer(value, np.uint8)} if isinstance(value, bytes) else value


def _config_of(tree: Tree) -> ConfigRecord:
    return ConfigRecord({name: [_decoded(one) for one in value] if isinstance(value, list) else _decoded(value)
                         for name, value in tree.items()})  # fmt: skip


def _decoded(value: Any) -> Any:
    return value["bytes"].tobytes() if isinstance(value, dict) else value
