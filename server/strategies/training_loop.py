"""The loop of a run, in the place of Flower's: it can go on from a state, repeat a slot and end with a clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from perennial.common.command.errors import InputError, RunError, shown
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.server.run import generators
from perennial.server.run.checkpoint import usable_state
from perennial.server.strategies.grids import MeteredGrid
from perennial.server.strategies.keeping import Keeper
from perennial.server.strategies.messages import first_error
from perennial.server.strategies.record import FoldedRound
from perennial.server.strategies.result import BlockResult, log_end, log_start

if TYPE_CHECKING:
    from perennial.server.strategies.base import BlockStrategy

LOG = logging.getLogger("flwr")
# A run that goes on whatever happens may wait for its nodes for days.
_LONGEST_PAUSE, _LONGEST_ENDLESS = 1.0, 10.0
_DOUBLINGS = 8


class Loop:
    """One call of ``start``."""

    def __init__(
        self,
        strategy: BlockStrategy,
        grid: Grid,
        *,
        num_rounds: int | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        keeper: Keeper | None,
        on_round: Callable[[FoldedRound], None] | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self._strategy, self._grid = strategy, MeteredGrid(grid)
        self._last = _last_round(num_rounds, strategy.schedule)
        self._evaluate_fn, self._keeper, self._on_round, self._stop = evaluate_fn, keeper, on_round, stop
        for what, given in (("evaluate_fn", evaluate_fn), ("on_round", on_round), ("stop", stop)):
            if given is not None and not callable(given):
                raise InputError(f"{what} must be a function, got {shown(given)}")
        self._result = BlockResult()
        self._over: list[FoldedRound] = []
        # The slot of round 1, if it was read before the round.
        self._first: Slot | None = None

    def run(
        self, initial: ArrayRecord, timeout: float, train_config: ConfigRecord, evaluate_config: ConfigRecord
    ) -> BlockResult:
        strategy = self._strategy
        if strategy.running:
            raise InputError(f"{type(strategy).__name__} is in a run; make another one for another run")
        began = time.time()
        strategy.begin(initial, train_config, evaluate_config, timeout)
        log_start(strategy, self._last, initial, train_config, evaluate_config)
        strategy.running = True
        try:
            self._begin(initial)
            self._rounds()
            if self._keeper:
                self._keeper.end()
        finally:
            strategy.running = False
        if strategy.trained is not None:
            self._result.arrays = strategy.mixed.arrays
        self._result.predictors = strategy.predictors.taken()
        log_end(self._result, time.time() - began)
        return self._result

    def _begin(self, initial: ArrayRecord) -> None:
        state = self._keeper.begin(self._strategy, initial) if self._keeper else None
        if state is not None:
            with usable_state("the folder of the run"):
                self._strategy.load_state_dict(state["strategy"])
                generators.restore(state["generators"])
            trained = self._strategy.trained
            LOG.info("Going on after round %s", trained.server_round if trained else 0)
        # A run that was killed in its first round has not told anybody yet.
        if self._evaluate_fn and self._strategy.trained is None:
            # It finds its block in the slot, as for every later model.
            self._strategy.slot = self._first = self._strategy.schedule.after(None)
            result = self._evaluate_fn(0, initial.copy())
            LOG.info("Initial global evaluation results: %s", result)
            if result is not None:
                self._result.evaluate_metrics_serverapp[0] = result

    def _rounds(self) -> None:
        strategy = self._strategy
        while self._last is None or strategy.trained is None or strategy.trained.server_round < self._last:
            slot, self._first = self._first or strategy.schedule.after(strategy.trained), None
            self._settle_before(slot)
            if slot is None:
                return
            self._train(slot)
            # A round that waited for its vote has it by now.
            for late in strategy.rounds.before(slot.server_round):
                self._judge(late)
            self._judge(slot)
            self._keep()
            if self._stop and self._stop():
                break
        self._settle_before(None)

    def _settle_before(self, following: Slot | None) -> None:
        """Hold the vote of a round that waits for it, unless the nodes of the following round bring it along."""
        pending = self._strategy.pending
        if pending is None or (following is not None and following.block == pending.block):
            return
        began = time.perf_counter()
        self._strategy.slot = pending
        self._strategy.settle(self._strategy.evaluate_config.record, self._grid)
        self._account(pending.server_round, began)
        self._judge(pending)
        self._keep()

    # --- A round ------------------------------------------------------------------------------------------------------

    def _train(self, slot: Slot) -> None:
        """Train the round of a slot, as often as it takes."""
        strategy, name = self._strategy, self._strategy.block_name(slot)
        LOG.info("")
        LOG.info("[ROUND %s/%s]", slot.server_round, self._last or "?")
        LOG.info("cycle %s, block %s, round %s of it", slot.cycle + 1, name, slot.round_in_block + 1)
        strategy.rounds.open(slot, name)
        for attempt in count(1):
            strategy.slot = slot
            strategy.rounds.note(slot.server_round, attempts=attempt)
            problem = self._attempt(slot)
            if not problem:
                strategy.trained = slot
                return
            text = f"round {slot.server_round}, block {name}: {problem}"
            if attempt == strategy.round_attempts:
                raise RunError(f"{text}, {attempt} times in a row; {strategy.advice}")
            LOG.warning("%s; the round is repeated", text)
            longest = _LONGEST_PAUSE if strategy.round_attempts else _LONGEST_ENDLESS
            time.sleep(min(0.05 * 2 ** min(attempt, _DOUBLINGS), longest))

    def _attempt(self, slot: Slot) -> str:
        """Train once; return '' or why it gave nothing."""
        strategy, began, server_round = self._strategy, time.perf_counter(), slot.server_round
        mixed = strategy.mixed
        messages = list(strategy.configure_train(server_round, mixed.arrays, mixed.config, self._grid))
        replies, error = self._replies(messages)
        arrays, metrics = strategy.aggregate_train(server_round, replies)
        self._account(server_round, began)
        if metrics is not None:
            LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
        if arrays is None:
            return strategy.problem or f"the mixed chain got no usable reply ({error})"
        if metrics is not None:
            self._result.train_metrics_clientapp[server_round] = metrics
        # As in Flower's loop: what a subclass returns is the model that goes on.
        mixed.arrays = arrays
        return ""

    def _replies(self, messages: list[Message]) -> tuple[Iterable[Message], str]:
        """Return the replies, and what is wrong with them if they turn out to be of no use."""
        timeout = self._strategy.timeout
        if self._strategy.carrier.reads_as_they_come:
            # It says itself what was wrong.
            return (self._grid.stream(messages, timeout=timeout) if messages else []), ""
        replies = list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []
        return replies, first_error(replies) or f"{len(messages)} messages were sent and {len(replies)} came back"

    def _judge(self, slot: Slot) -> None:
        """Judge the predictor that the round of a slot left, and end the round; nothing if it waits for its vote."""
        strategy, began, server_round = self._strategy, time.perf_counter(), slot.server_round
        strategy.slot = slot
        config = strategy.evaluate_config.record
        messages = list(strategy.configure_evaluate(server_round, strategy.mixed.arrays, config, self._grid))
        if not strategy.rounds.is_folded(server_round):
            self._account(server_round, began)
            return
        replies = list(self._grid.send_and_receive(messages, timeout=strategy.timeout)) if messages else []
        metrics = strategy.aggregate_evaluate(server_round, replies)
        if metrics is not None:
            LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
            self._result.evaluate_metrics_clientapp[server_round] = metrics
        strategy.rounds.note(server_round, evaluate_metrics=metrics, server_metrics=self._evaluate(server_round))
        self._account(server_round, began)
        self._end(strategy.rounds.close(server_round))

    def _evaluate(self, server_round: int) -> MetricRecord | None:
        if self._evaluate_fn is None:
            return None
        LOG.info("Global evaluation")
        record = self._strategy.rounds[server_round]
        metrics = self._evaluate_fn(server_round, record.predictors[record.block_name].copy())
        LOG.info("\t└──> MetricRecord: %s", metrics)
        if metrics is not None:
            self._result.evaluate_metrics_serverapp[server_round] = metrics
        return metrics

    def _account(self, server_round: int, began: float) -> None:
        record = self._strategy.rounds[server_round]
        down, up = self._grid.take()
        self._strategy.rounds.note(
            server_round,
            bytes_down=record.bytes_down + down,
            bytes_up=record.bytes_up + up,
            seconds=record.seconds + time.perf_counter() - began,
        )

    def _end(self, record: FoldedRound) -> None:
        self._over.append(record)
        if self._on_round:
            self._on_round(record)

    def _keep(self) -> None:
        if self._keeper:
            state = {"strategy": self._strategy.state_dict(), "generators": generators.save()}
            self._keeper.keep(state, self._over)
        self._over = []


def _last_round(num_rounds: int | None, schedule: Schedule) -> int | None:
    """Return the last round that is known beforehand; None: the clock ends the run."""
    total = schedule.total_rounds
    if num_rounds is None:
        if schedule.cycles is None:
            raise InputError("the schedule has no end: give start num_rounds, or the schedule cycles")
        return total
    if type(num_rounds) is not int or num_rounds < 1:
        raise InputError(f"num_rounds must be at least 1, got {shown(num_rounds)}")
    if total is not None and num_rounds > total:
        raise InputError(f"num_rounds is {num_rounds}, and the schedule ends after {total}; give one of the two")
    return num_rounds
