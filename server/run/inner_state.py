"""The state of a Flower strategy as a tree, by walking its attributes; no pickles.

Kept are numbers, text, None, bool, bytes, NumPy arrays and scalars, Flower's records and Arrays; lists, tuples and
dicts of these; and strategies within the strategy. Functions, classes and loggers are left out: they are those of the
instance that the state is put into. Anything else is refused by name, unless the strategy has ``state_dict`` and
``load_state_dict``, which are then used instead.

In the tree a number, a text or a NumPy array stands for itself, and all else is a dict of one key that says what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import isroutine
from logging import Logger, LoggerAdapter
from types import MemberDescriptorType, ModuleType
from typing import Any

import flwr.serverapp.strategy as flower
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError
from perennial.server.run.tree import DamagedError, Tree, keeps

_LEAVES = (type(None), bool, int, float, str)
_RECORDS: dict[type, str] = {ArrayRecord: "arrays", ConfigRecord: "config", MetricRecord: "metrics"}
_LEFT_OUT = (partial, np.ufunc, type, ModuleType, Logger, LoggerAdapter)
_DEEPEST = 30
_MISSING = object()


def save(strategy: Strategy) -> Tree:
    """Return the strategy's state, which shares nothing with it; an InputError names what cannot be kept."""
    return _Saving().strategy(strategy, type(strategy).__name__)


def restore(strategy: Strategy, tree: Tree) -> None:
    """Put a state that ``save`` returned into an instance made as the saved one was; its functions stay.

    An InputError if the state is of another class, or of other strategies within; then nothing has changed.
    """
    restoring = _Restoring()
    try:
        restoring.strategy(strategy, tree, type(strategy).__name__)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError | DamagedError):
            raise
        raise DamagedError(f"the state of {type(strategy).__name__} cannot be used: {error}") from error
    for change in restoring.changes:
        change()


class _Saving:
    """One walk over a strategy; a strategy that is met again is not walked again."""

    def __init__(self) -> None:
        self._met: set[int] = set()

    def strategy(self, strategy: Strategy, where: str) -> Tree:
        self._met.add(id(strategy))
        name = _class_name(strategy)
        if _has_state_dict(strategy):
            state = strategy.state_dict()  # type: ignore[attr-defined]
            return {"class": name, "state": self.value(state, f"{where}.state_dict()", "return", whole=True)}
        advice = f"give {type(strategy).__name__} state_dict and load_state_dict that return and take"
        attributes = {key: self.value(one, f"{where}.{key}", advice) for key, one in _attributes(strategy)}
        return {"class": name, "attributes": attributes}

    def value(self, value: Any, where: str, advice: str, depth: int = 0, *, whole: bool = False) -> Tree:
        """Return the tree of a value. whole: nothing may be left to the instance that the state is put into."""
        kind = type(value)
        if depth > _DEEPEST:
            raise InputError(f"{where[:160]} is nested more than {_DEEPEST} deep; does a list or a dict hold itself?")
        if kind in _LEAVES or (isinstance(value, np.generic) and keeps(value.dtype)):
            return value
        if kind is np.ndarray and keeps(value.dtype):
            return value.copy(order="K")
        if kind is bytes:
            return {"bytes": np.frombuffer(value, np.uint8)}
        if kind is Array:
            return {"array": [value.dtype, list(value.shape), value.stype, np.frombuffer(value.data, np.uint8)]}

        def inner(one: Any, place: object) -> Tree:
            return self.value(one, f"{where}[{place!r}]", advice, depth + 1, whole=whole)

        if kind in (list, tuple):
            return {kind.__name__: [inner(one, place) for place, one in enumerate(value)]}
        if kind is dict or kind in _RECORDS:
            pairs = [[inner(key, key), inner(one, key)] for key, one in value.items()]
            return {_RECORDS.get(kind, "dict"): pairs}
        if not whole and (isroutine(value) or isinstance(value, _LEFT_OUT) or id(value) in self._met):
            return {"left": None}
        if not whole and isinstance(value, Strategy):
            return {"strategy": self.strategy(value, where)}
        what = f"{kind.__name__} of {value.dtype}" if isinstance(value, np.ndarray) else kind.__name__
        raise InputError(f"{where} is a {what}, which a checkpoint cannot keep; {advice} numbers, text and arrays")


class _Restoring:
    """One walk over a saved state beside the instance; notes what is to change there."""

    def __init__(self) -> None:
        self.changes: list[Callable[[], None]] = []

    def strategy(self, strategy: Strategy, tree: Tree, where: str) -> None:
        if tree["class"] != _class_name(strategy):
            raise InputError(
                f"{where}: the saved state is of {tree['class']}, the strategy is {_class_name(strategy)}; "
                "go on with the strategy that the run was started with"
            )
        if ("state" in tree) != _has_state_dict(strategy):
            raise InputError(f"{where}: state_dict and load_state_dict came or went since the state was saved; "
                             "go on with the strategy that the run was started with")  # fmt: skip
        if "state" in tree:
            state = self.value(tree["state"], _MISSING, where)
            self.changes.append(lambda: strategy.load_state_dict(state))  # type: ignore[attr-defined]
            return
        present = dict(_attributes(strategy))
        for name, one in tree["attributes"].items():
            mine = present.get(name, _MISSING)
            if not (isinstance(one, dict) and "left" in one):
                value = self.value(one, mine, f"{where}.{name}")
                self.changes.append(partial(setattr, strategy, name, value))

    def value(self, tree: Tree, present: Any, where: str) -> Any:
        """Return the saved value. present: what the instance has in its place, for what is left to it."""
        if not isinstance(tree, dict):
            return tree.copy(order="K") if isinstance(tree, np.ndarray) else tree
        ((kind, saved),) = tree.items()
        if kind in ("left", "strategy"):
            return self._own(kind, saved, present, where)
        if kind in ("list", "tuple"):
            places = list(present) if isinstance(present, list | tuple) else []
            places += [_MISSING] * (len(saved) - len(places))
            found = [self.value(one, places[place], f"{where}[{place}]") for place, one in enumerate(saved)]
            return found if kind == "list" else tuple(found)
        if kind in ("dict", *_RECORDS.values()):
            return self._mapping(kind, saved, present if isinstance(present, dict) else {}, where)
        if kind == "array":
            dtype, shape, stype, data = saved
            return Array(dtype, tuple(shape), stype, data.tobytes())
        if kind == "bytes":
            return saved.tobytes()
        raise DamagedError(f"{where} is a {kind!r}, which nobody saves")

    def _mapping(self, kind: str, saved: Tree, present: dict[Any, Any], where: str) -> Any:
        found = {}
        for coded, one in saved:
            key = self.value(coded, _MISSING, where)
            found[key] = self.value(one, present.get(key, _MISSING), f"{where}[{key!r}]")
        if kind == "dict":
            return found
        return next(record for record, name in _RECORDS.items() if name == kind)(found)

    def _own(self, kind: str, saved: Tree, present: Any, where: str) -> Any:
        """Return what the instance has there, a strategy with its saved state noted."""
        if present is _MISSING or (kind == "strategy" and not isinstance(present, Strategy)):
            what = "a strategy" if kind == "strategy" else "a function"
            raise InputError(
                f"{where} was {what} when the state was saved; make the strategy as the run's first part did"
            )
        if kind == "strategy":
            self.strategy(present, saved, where)
        return present


def _attributes(strategy: Strategy) -> Iterator[tuple[str, Any]]:
    """Yield the instance's attributes by name, those in slots too."""
    slots = [name for kind in type(strategy).__mro__ for name, one in vars(kind).items()
             if isinstance(one, MemberDescriptorType)]  # fmt: skip
    for name in [*vars(strategy), *slots]:
        # A slot may be empty.
        if hasattr(strategy, name):
            yield name, getattr(strategy, name)


def _has_state_dict(strategy: Strategy) -> bool:
    return all(callable(getattr(strategy, name, None)) for name in ("state_dict", "load_state_dict"))


def _class_name(strategy: Strategy) -> str:
    """Return where the class can be imported from; Flower's own may move from one of its private modules to another."""
    kind = type(strategy)
    module = flower.__name__ if getattr(flower, kind.__qualname__, None) is kind else kind.__module__
    return f"{module}.{kind.__qualname__}"
