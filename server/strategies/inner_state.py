"""The state of an inner strategy as a tree, found by walking its attributes. To be replaced by the run folder's walk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError
from perennial.server.strategies.trees import Tree, array_tree, arrays_of


def dump(strategy: Strategy) -> Tree:
    """Return the attributes of the strategy, by kind; functions are left out."""
    if hasattr(strategy, "state_dict"):
        return {"own": strategy.state_dict()}
    where = type(strategy).__name__
    return {
        "attributes": {name: _dumped(one, f"{where}.{name}") for name, one in vars(strategy).items() if not callable(one)}
    }


def load(strategy: Strategy, tree: Tree) -> None:
    """Set the attributes to what ``dump`` found."""
    if "own" in tree:
        strategy.load_state_dict(tree["own"])  # type: ignore[attr-defined]
        return
    for name, value in tree["attributes"].items():
        setattr(strategy, name, _loaded(value, getattr(strategy, name, None)))


def _dumped(value: Any, where: str) -> Any:
    if isinstance(value, Strategy):
        return {"strategy": dump(value)}
    if isinstance(value, ArrayRecord):
        return {"record": array_tree(value)}
    if value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic):
        return value
    if isinstance(value, list | tuple):
        return {"items": [_dumped(one, f"{where}[{index}]") for index, one in enumerate(value)]}
    if isinstance(value, Mapping):
        return {"keys": list(value), "values": [_dumped(one, f"{where}[{key!r}]") for key, one in value.items()]}
    raise InputError(
        f"{where} is a {type(value).__name__}, which cannot be kept; give the strategy state_dict and load_state_dict"
    )


def _loaded(value: Any, old: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "strategy" in value:
        load(old, value["strategy"])
        return old
    if "record" in value:
        return arrays_of(value["record"])
    if "items" in value:
        return [_loaded(one, None) for one in value["items"]]
    return {key: _loaded(one, None) for key, one in zip(value["keys"], value["values"], strict=True)}
