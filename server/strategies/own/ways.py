"""The strategies of the key ``strategy``: how each reads chains, and what trains them; told apart here alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.serverapp.strategy import FedAdam, FedAvgM

from perennial.common.command.config import STRATEGIES, RunConfig
from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import imported
from perennial.common.cycle.schedule import Schedule
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE
from perennial.common.wire.layout import Layout
from perennial.server.cohort.account import VOTE
from perennial.server.cohort.roster import Roster
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.mc_psgd import MCPSGD
from perennial.server.strategies.mm_psgd import MMPSGD
from perennial.server.strategies.own.averaging import EVERYBODY, CohortAveraging, Follower
from perennial.server.strategies.own.dispatch import Dispatch
from perennial.server.strategies.own.neighbours.fedrep import BlockModels, FedRep
from perennial.server.strategies.own.neighbours.ifca import IFCA
from perennial.server.strategies.own.readers import CHOSEN, Reader


@dataclass(frozen=True)
class Way:
    """How a strategy makes predictors.

    reads: the source of its reader, and ``everywhere`` as there. newest: its predictors are no averages. pays: the
    chains and the votes whose bytes it is billed for. own: makes the strategy inside that trains it alone; None: the
    chains of the paper, which it shares.
    """

    reads: str
    pays: tuple[str, ...] = (MIXED,)
    everywhere: bool = False
    newest: bool = False
    own: Callable[[Dispatch, int], CohortAveraging] | None = None

    @property
    def shows(self) -> tuple[str, ...]:
        """The chains that the metrics of a run show."""
        return tuple(chain for chain in CHAINS if chain in self.pays)

    def decay(self, config: RunConfig) -> float | None:
        """Return what its predictors are folded with."""
        if self.newest:
            return 0.0
        return config.decay if config.averaging == "exponential" else None


def _momentum(dispatch: Dispatch, blocks: int) -> CohortAveraging:
    config = dispatch.config
    lr, momentum = config.server_lr or 1.0, config.server_momentum
    return CohortAveraging(dispatch, step=FedAvgM(**EVERYBODY, server_learning_rate=lr, server_momentum=momentum))


def _adam(dispatch: Dispatch, blocks: int) -> CohortAveraging:
    config = dispatch.config
    rates: dict[str, Any] = {
        "eta": config.server_lr or 0.01,
        "beta_1": config.server_momentum,
        "beta_2": config.server_beta2,
    }
    return CohortAveraging(dispatch, step=FedAdam(**EVERYBODY, **rates, tau=config.server_tau))


WAYS: dict[str, Way] = {
    "fedavg": Way(MIXED, everywhere=True, newest=True),
    "fedavg-mean": Way(MIXED, everywhere=True),
    "mm-psgd": Way(MIXED),
    "block-separate": Way(SEPARATE, pays=(SEPARATE,)),
    "mc-psgd": Way(CHOSEN, pays=(*CHAINS, VOTE)),
    "fedavgm": Way(MIXED, everywhere=True, newest=True, own=_momentum),
    "fedadam": Way(MIXED, everywhere=True, newest=True, own=_adam),
    "fedrep": Way(SEPARATE, everywhere=True, newest=True, own=FedRep),
    "ifca": Way(SEPARATE, pays=(MIXED, VOTE), everywhere=True, newest=True, own=IFCA),
}


def check_complete(names: Sequence[str]) -> None:
    """Refuse a table that lacks a strategy, or has one that the configuration does not know."""
    if odd := sorted(set(names) ^ set(WAYS)):
        lacks = "server/strategies/own/ways.py" if odd[0] in names else "STRATEGIES of common/command/config.py"
        raise RuntimeError(f"strategy {odd[0]!r} is not in {lacks}; every strategy must be in both")


check_complete(STRATEGIES)


@dataclass(frozen=True)
class Training:
    """The strategy that trains for the runs of a pass, and the reader of each."""

    strategy: BlockStrategy
    readers: tuple[Reader, ...]


def way_of(strategy: str) -> Way:
    """Return the way of a strategy: of the table, or a user's own, which is named as package.module:name."""
    if strategy in WAYS:
        return WAYS[strategy]
    found = imported("strategy", strategy)
    if not isinstance(found, Way):
        raise InputError(f"strategy {strategy!r} must be a Way, got {shown(found)}")
    return found


def trains(strategy: str) -> str:
    """Return what tells apart strategies that cannot share a training; '' for the chains of the paper."""
    return strategy if way_of(strategy).own else ""


def assemble(configs: Sequence[RunConfig], schedule: Schedule, layout: Layout, roster: Roster) -> Training:
    """Return the training of a pass; the first run, which needs most, trains for all."""
    assert len({trains(config.strategy) for config in configs}) == 1, "the runs of a pass must share its training"
    ways, names, first = [way_of(config.strategy) for config in configs], schedule.names, configs[0]
    dispatch = Dispatch(first, layout, roster, lambda: strategy.check_running())
    both = ways[0].own is None and (CHOSEN in [way.reads for way in ways] or len({way.reads for way in ways}) > 1)
    # What a strategy folds by itself is the reader of the first run, if that reads the same; else it folds for nobody,
    # and a decay of 0 costs nothing.
    shares = not ways[0].everywhere and ways[0].reads == (CHOSEN if both else MIXED)
    decay = ways[0].decay(first) if shares else 0.0
    options = {"averaging": "mean" if decay is None else "exponential", "decay": decay or 0.0}
    strategy = (_both if both else _one)(ways[0], schedule, dispatch, options)
    readers = tuple(
        Reader(
            way.reads,
            way.decay(config),
            names,
            everywhere=way.everywhere,
            predictors=strategy.predictors if config is first and shares else None,
        )
        for way, config in zip(ways, configs, strict=True)
    )
    strategy.carrier, strategy.advice = dispatch, dispatch.advice
    strategy.observers.extend(readers)
    return Training(strategy, readers)


def _one(way: Way, schedule: Schedule, dispatch: Dispatch, options: dict[str, Any]) -> BlockStrategy:
    """Return the training of one chain: the mixed one, a neighbour's, or that of each block alone."""
    blocks = len(schedule.names)
    if way.own:
        inner = way.own(dispatch, blocks)
    elif way.reads == SEPARATE:
        inner = BlockModels(dispatch, blocks, dispatch.layout.names, SEPARATE)
    else:
        inner = CohortAveraging(dispatch)
    return MMPSGD(inner, schedule=schedule, round_attempts=dispatch.config.round_attempts or None, **options)


def _both(way: Way, schedule: Schedule, dispatch: Dispatch, options: dict[str, Any]) -> BlockStrategy:
    """Return the training of both chains, on the same nodes, in one message."""
    strategy = MCPSGD(
        CohortAveraging(dispatch),
        schedule=schedule,
        separate=lambda: Follower(dispatch, SEPARATE),
        one_message=True,
        round_attempts=dispatch.config.round_attempts or None,
        **options,
    )
    strategy.electorate = dispatch
    return strategy
