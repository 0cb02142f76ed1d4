"""The parts that MM-PSGD and MC-PSGD are put together of, and Flower's ``start``. The algorithms are in their files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.clock import ClockSchedule
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.common.wire.chains import MIXED
from perennial.server.strategies.carriers import Alone, Carrier, Replies
from perennial.server.strategies.chain import Chain
from perennial.server.strategies.judging import Judging
from perennial.server.strategies.keeping import Keeper, keeping
from perennial.server.strategies.messages import SLOT_KEYS
from perennial.server.strategies.predictors import BlockPredictors, decay_of
from perennial.server.strategies.record import FoldedRound, OpenRounds
from perennial.server.strategies.result import BlockResult
from perennial.server.strategies.training_loop import Loop
from perennial.server.strategies.trees import RunningConfig, Tree

LOG = logging.getLogger("flwr")


@dataclass(frozen=True)
class Heads:
    """The models of a round: x_bar, and the newest one of each block. chosen: u_bar's chain, if there was a choice."""

    mixed: ArrayRecord
    blocks: list[ArrayRecord]
    chosen: str | None


class RoundObserver(Protocol):
    """Told of each round while its models are the heads of the chains."""

    def folded(self, slot: Slot, heads: Heads) -> None:
        """The round of ``slot`` is in the predictor of its block."""


class BlockStrategy(Strategy):
    """A mixed chain, and a predictor for each block.

    carrier: how messages travel. observers: who is told of each round's models. problem: why the last attempt at a
    round gave nothing, if the carrier knows. slot: the place of the round that is being trained or judged, for the
    initial model that of round 1; None before. trained: the slot of the last round that is in the chains. pending: of
    the round that waits for its vote, if one does. rounds: those not over yet. one_model: all blocks have the same
    predictor, which every round changes.
    """

    one_model = False

    def __init__(
        self, strategy: Strategy, schedule: Schedule, averaging: str, decay: float, round_attempts: int | None
    ) -> None:
        if isinstance(strategy, BlockStrategy):
            raise InputError(f"{_name(self)} cannot be around {_name(strategy)}; give it the strategy that is inside")
        if isinstance(schedule, type) or not callable(getattr(schedule, "after", None)):
            raise InputError(f"schedule must be a RoundSchedule or a ClockSchedule, got {shown(schedule)}")
        if round_attempts is not None and (type(round_attempts) is not int or round_attempts < 1):
            raise InputError(f"round_attempts must be at least 1, got {shown(round_attempts)}")
        self.schedule, self.round_attempts = schedule, round_attempts
        self.mixed = Chain(MIXED, strategy)
        self.judging = Judging(strategy)
        self.predictors = BlockPredictors(decay_of(averaging, decay))
        self.rounds = OpenRounds()
        self.carrier: Carrier = Alone()
        self.observers: list[RoundObserver] = []
        self.problem = ""
        self.evaluate_config = RunningConfig(ConfigRecord())
        self.slot: Slot | None = None
        self.trained: Slot | None = None
        self.pending: Slot | None = None
        self.timeout = 3600.0
        self.running = False
        self.advice = "are the clients well?"
        self.settings: dict[str, Any] = {
            "averaging": averaging,
            **({} if averaging == "mean" else {"decay": float(decay)}),
        }

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        run_dir: str | Path | Keeper | None = None,
        on_round: Callable[[FoldedRound], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> BlockResult:
        """Train, and return Flower's result with ``predictors``, by the names of the blocks that were trained.

        num_rounds: the rounds of the whole run, those before a resume included; None: to the end of the schedule.
        evaluate_fn: judges the predictor of the round's block, which it finds in ``slot``; before round 1 the initial
        model, in the slot of round 1. run_dir: the folder that keeps the run after every round; a second start with it
        goes on from there. on_round: called with the record of each round. stop: asked after each round whether the run
        ends.
        """
        with keeping(run_dir) as keeper:
            loop = Loop(
                self, grid, num_rounds=num_rounds, evaluate_fn=evaluate_fn, keeper=keeper, on_round=on_round, stop=stop
            )
            return loop.run(initial_arrays, timeout, train_config or ConfigRecord(), evaluate_config or ConfigRecord())

    def begin(
        self, initial: ArrayRecord, train_config: ConfigRecord, evaluate_config: ConfigRecord, timeout: float
    ) -> None:
        """Begin anew; called by the loop before its first round."""
        if not isinstance(initial, ArrayRecord):
            raise InputError(f"initial_arrays must be an ArrayRecord, got {shown(initial)}")
        if not initial:
            raise InputError("initial_arrays is empty; give the model that training starts from")
        for what, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            checked_config(what, config)
        self.slot = self.trained = self.pending = None
        self.timeout = timeout
        self.mixed.begin(initial, train_config)
        self.predictors.begin(initial)
        self.rounds.clear()
        self.judging.load_state_dict(None)
        self.evaluate_config = RunningConfig(evaluate_config)

    def settle(self, config: ConfigRecord, grid: Grid) -> None:
        """Hold the vote that the pending round waits for; called by the loop if no round of its block follows."""
        raise AssertionError("no round waits for a vote")

    def unpacked(self, server_round: int, replies: Iterable[Message]) -> Replies:
        """Return the replies of a round by chain, and charge the round with what they cost."""
        parted = self.carrier.unpack(replies)
        self.problem = parted.problem
        self.rounds.charge(server_round, parted.account)
        return parted

    def fold(self, slot: Slot, model: ArrayRecord) -> None:
        """Fold the model of a round into the predictor of its block, and tell those who observe."""
        self.predictors.fold(self.block_name(slot), model)
        predictors, folded = self.predictors.taken(), dict(self.predictors.folded)
        self.rounds.note(slot.server_round, predictors=predictors, folded=folded)
        heads = Heads(self.mixed.arrays, self.block_models(), self.rounds[slot.server_round].chosen)
        for observer in self.observers:
            observer.folded(slot, heads)

    def block_models(self) -> list[ArrayRecord]:
        """Return the newest model of each block, if the strategy has one beside the predictors; else none."""
        own = getattr(self.mixed.strategy, "block_models", list)
        return list(own())

    def summary(self) -> None:
        LOG.info("\t├──> %s settings:", _name(self))
        LOG.info("\t│\t├── Blocks: %s", ", ".join(self.schedule.names))
        LOG.info("\t│\t└── %s", ", ".join(f"{key}: {value}" for key, value in self.settings.items()))
        self.mixed.strategy.summary()

    def state_dict(self) -> Tree:
        """Return everything that the next round depends on, but for the generators, as plain values and arrays."""
        return {
            "identity": self._identity(),
            "started": self.schedule.started.isoformat() if isinstance(self.schedule, ClockSchedule) else None,
            "trained": asdict(self.trained) if self.trained else None,
            "pending": asdict(self.pending) if self.pending else None,
            "mixed": self.mixed.state_dict(),
            "predictors": self.predictors.state_dict(),
            "rounds": self.rounds.state_dict(),
            "judging": self.judging.state_dict(),
            "evaluate_config": self.evaluate_config.state(),
        }

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what ``state_dict`` gave; an InputError if that is of another strategy, schedule or model."""
        for what, mine in self._identity().items():
            if (theirs := state["identity"].get(what)) != mine:
                raise InputError(
                    f"the run to go on from has another {what}: {shown(theirs)}, not {shown(mine)}; start it as it "
                    "was, or keep this one in another run_dir"
                )
        self.mixed.load_state_dict(state["mixed"])
        if isinstance(self.schedule, ClockSchedule):
            self.schedule = self.schedule.since(datetime.fromisoformat(state["started"]))
        self.trained = Slot(**state["trained"]) if state["trained"] else None
        self.pending = Slot(**state["pending"]) if state["pending"] else None
        self.predictors.load_state_dict(state["predictors"])
        self.rounds.load_state_dict(state["rounds"])
        self.judging.load_state_dict(state["judging"])
        self.evaluate_config.load(state["evaluate_config"])

    def block_name(self, slot: Slot) -> str:
        return self.schedule.names[slot.block]

    def check_running(self) -> Slot:
        """Return the slot of the round; an error if this is driven by any loop but its own."""
        if not self.running or self.slot is None:
            raise InputError(
                f"{_name(self)} runs by its own start() alone; a privacy wrapper or another strategy belongs inside, "
                f"as in {_name(self)}(DifferentialPrivacyServerSideFixedClipping(FedAvg(), …), schedule=…)"
            )
        return self.slot

    def _identity(self) -> dict[str, Any]:
        return {"strategy": _name(self), "schedule": self.schedule.identity, "settings": self.settings}


def checked_config(what: str, config: object) -> None:
    """Refuse what is no config record, and one with a key of our own; ``what`` is the argument that it was given as."""
    if not isinstance(config, ConfigRecord):
        raise InputError(f"{what} must be a ConfigRecord, got {shown(config)}")
    for key in SLOT_KEYS:
        if key in config:
            raise InputError(f"{what} has {key!r}, which is written for every round; give yours another name")


def _name(strategy: Strategy) -> str:
    return type(strategy).__name__
