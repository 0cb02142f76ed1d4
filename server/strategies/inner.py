"""The strategies inside MM-PSGD and MC-PSGD: which may be, and how there comes to be one for each separate chain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flwr.serverapp.strategy import FedAvg, Strategy

from perennial.common.command.errors import InputError, shown


def inner_of(strategy: Strategy | None, fedavg: Mapping[str, Any], wrapper: str) -> Strategy:
    """Return the strategy that a user gave, or Flower's FedAvg made of the arguments that they gave instead."""
    if strategy is None:
        return FedAvg(**fedavg)
    checked = _strategy(strategy, f"the first argument of {wrapper}")
    if fedavg:
        raise InputError(
            f"{wrapper} got a strategy and arguments for FedAvg ({', '.join(fedavg)}) at once; "
            f"give the arguments to {type(checked).__name__}"
        )
    return checked


def one_for_each(blocks: Sequence[str], strategy: Strategy, make: Callable[[], Strategy] | None) -> list[Strategy]:
    """Return a strategy for the separate chain of each block: copies of ``strategy``, or what ``make`` makes."""
    for one in within(strategy):
        _refuse_accountant(one)
    if make is None:
        return [_copied(strategy) for _ in blocks]
    if not callable(make):
        raise InputError(f"separate must be a function without arguments that makes a strategy, got {shown(make)}")
    made = [_strategy(make(), "what separate() made") for _ in blocks]
    if len({id(one) for one in (*made, strategy)}) <= len(blocks):
        raise InputError("separate() must make a new strategy each time it is called, and gave one twice")
    for one in made:
        for part in within(one):
            _refuse_accountant(part)
    return made


def within(strategy: Strategy) -> Iterator[Strategy]:
    """Yield the strategy and those that it wraps, as Flower's privacy wrappers do."""
    yield strategy
    for value in vars(strategy).values():
        if isinstance(value, Strategy):
            yield from within(value)


def weight_key(strategy: Strategy) -> str:
    """Return the metric by which the strategy weighs its clients: what Flower's call weighted_by_key."""
    keys = (getattr(one, "weighted_by_key", None) for one in within(strategy))
    return next((key for key in keys if isinstance(key, str)), "num-examples")


def _strategy(value: object, what: str) -> Strategy:
    if not isinstance(value, Strategy):
        raise InputError(f"{what} must be a Flower strategy such as FedAvg(), got {shown(value)}")
    return value


def _copied(strategy: Strategy) -> Strategy:
    try:
        return copy.deepcopy(strategy)
    # Whatever a strategy holds may refuse to be copied, each in its own way.
    except Exception as error:
        raise InputError(
            f"{type(strategy).__name__} cannot be copied for each block ({type(error).__name__}: {error}); "
            "give separate=, a function without arguments that makes one"
        ) from error


def _refuse_accountant(strategy: Strategy) -> None:
    if any(hasattr(value, "get_privacy_spent") for value in vars(strategy).values()):
        raise InputError(
            f"{type(strategy).__name__} has a privacy accountant, which would understate epsilon inside MCPSGD: "
            "a round releases two models and a vote, and it counts one model; use MMPSGD"
        )
