"""One pass of training, for one run or several that share its chains: Flower's loop, and what it leaves."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError, RunError
from perennial.common.cycle.clock import ClockSchedule
from perennial.common.cycle.schedule import Schedule
from perennial.common.task import models
from perennial.common.task.ready import open_task
from perennial.common.wire.chains import SEPARATE, Vector
from perennial.common.wire.layout import Layout
from perennial.server.cohort.roster import Roster
from perennial.server.psgd import Chains, Predictors
from perennial.server.run.checkpoint import Checkpoint, check_same_config, load_latest, save_checkpoint
from perennial.server.run.evaluate import Evaluator, Right, TorchRight
from perennial.server.run.folder import Metrics
from perennial.server.run.prepare import Pass, Run
from perennial.server.run.readers import reader_of
from perennial.server.run.state import RoundRecord, RunState
from perennial.server.strategies.own import ScheduleOver, strategy_for

LOG = logging.getLogger("perennial")
# Simulated rounds may take milliseconds; a checkpoint a few times a minute loses little and costs nothing.
_SECONDS_BETWEEN_CHECKPOINTS = 5.0
_ENDLESS = 2**31


class Progress(Protocol):
    """Shows a run as it goes."""

    def round_done(self, record: RoundRecord, accuracies: list[float | None], schedule: Schedule) -> None:
        """Called once a round; accuracies: the mean block accuracy of each run, None where not evaluated."""


def train(
    prepared: Pass,
    grid: Grid,
    *,
    nodes: int,
    resume: bool = False,
    eager: bool = True,
    progress: Progress | None = None,
    right: Right | None = None,
) -> None:
    """Train once for all runs of a pass, and write their results.

    nodes: to wait for before the first round. eager: checkpoint every round where checkpoint-every is auto.
    right: tells which guesses of a model are right; None: by torch.
    """
    runs, shards, config = prepared.runs, prepared.shards, prepared.config
    if config.fine_tune_steps and right is None:
        raise InputError(
            "fine-tune-steps is for flower-simulation: a server has no data of the clients to fine-tune on"
        )
    arrays = models.arrays_of(prepared.network)
    layout = Layout.of(arrays)
    initial = layout.flatten(arrays)
    readers = [reader_of(run.config) for run in runs]
    strategy_class = strategy_for(readers)
    blocks = shards.blocks
    separate = blocks if SEPARATE in strategy_class.chains else 0
    state = RunState(None, Chains.start(initial, separate), tuple(Predictors.start(initial, blocks) for _ in runs))
    roster = Roster(config, blocks)
    schedule = schedule_of(config)
    saved = _saved(runs, initial) if resume else None
    if saved is not None and all(run.folder.is_complete() for run in runs):
        LOG.info("%s is done", runs[0].folder.path)
        return
    if saved is None:
        for run in runs:
            run.folder.start(run.config, layout, initial)
    else:
        state = saved.state
        roster.quarantine.restore(saved.quarantine)
        assert state.slot is not None
        schedule = schedule_of(config, started=saved.started, done=state.slot.server_round)
    roster.gather(grid, nodes)
    _say_what_is_averaged(config, roster)
    evaluator = Evaluator(right or TorchRight(prepared.network, layout, open_task(config.task)), shards)
    keeper = _Keeper(runs, schedule, evaluator, roster, saved.positions if saved else (0,) * len(runs), eager, progress)
    strategy = strategy_class(config, schedule, layout, readers, state, roster, keeper)
    done = state.slot.server_round if state.slot else 0
    remaining = _ENDLESS if schedule.total_rounds is None else schedule.total_rounds - done
    try:
        strategy.start(grid, ArrayRecord(), remaining, config.round_timeout)
    except ScheduleOver:
        pass
    finally:
        keeper.close()
    accuracies = evaluator.accuracies(strategy.state.predictors)
    for index, (run, predictors) in enumerate(zip(runs, strategy.state.predictors, strict=True)):
        accuracy = accuracies[index] if accuracies else None
        run.folder.write_predictors(run.config, schedule, layout, predictors, accuracy)


def _saved(runs: Sequence[Run], initial: Vector) -> Checkpoint | None:
    """Return the checkpoint of a pass, kept in its first run's folder, if it fits; None where the pass has none."""
    saved = load_latest(runs[0].folder.checkpoints)
    if saved is None:
        if any(runs[0].folder.checkpoints.glob("*.json")):
            raise RunError(f"no checkpoint in {runs[0].folder.checkpoints} is whole; run again without --resume")
        return None
    check_same_config(saved.config, runs[0].config)
    if len(saved.positions) != len(runs):
        raise InputError(
            f"--resume: the checkpoint was of {len(saved.positions)} runs together, this is of {len(runs)}"
        )
    if saved.state.chains.mixed.shape != initial.shape:
        raise InputError(
            f"--resume: the checkpoint's model has {saved.state.chains.mixed.size} parameters, "
            f"{runs[0].config.model} has {initial.size} now; they must agree"
        )
    return saved


def _say_what_is_averaged(config: RunConfig, roster: Roster) -> None:
    if config.aggregation != "mean" and roster.largest() > 1:
        LOG.warning("aggregation %s is over nodes, each already the mean of up to %d clients: one bad client spoils "
                    "its whole node; for a %s over clients, host one a node",
                    config.aggregation, roster.largest(), config.aggregation)  # fmt: skip


class _Keeper:
    """Keeps what a pass must not lose: metrics a round, accuracies where due, checkpoints."""

    def __init__(
        self,
        runs: Sequence[Run],
        schedule: Schedule,
        evaluator: Evaluator,
        roster: Roster,
        positions: Sequence[int],
        eager: bool,
        progress: Progress | None,
    ) -> None:
        self._runs, self._schedule, self._evaluator, self._roster = runs, schedule, evaluator, roster
        self._readers = [reader_of(run.config) for run in runs]
        self._metrics = [Metrics(run.folder.metrics, place) for run, place in zip(runs, positions, strict=True)]
        self._progress, self._eager = progress, eager
        self._last: Checkpoint | None = None
        self._saved_at = time.monotonic()

    def folded(self, state: RunState, record: RoundRecord) -> None:
        done = record.slot.server_round
        due = done % self._runs[0].config.evaluate_every() == 0 or done == self._schedule.total_rounds
        accuracies = self._evaluator.accuracies(state.predictors) if due else None
        means: list[float | None] = []
        for index, (reader, metrics) in enumerate(zip(self._readers, self._metrics, strict=True)):
            row: dict[str, Any] = record.row(reader.chains)
            if accuracies:
                row |= {"accuracy": accuracies[index], "mean-accuracy": sum(accuracies[index]) / len(accuracies[index])}
            means.append(row.get("mean-accuracy"))
            metrics.append(row)
        if self._progress:
            self._progress.round_done(record, means, self._schedule)

    def finished(self, state: RunState) -> None:
        assert state.slot is not None
        started = self._schedule.started.isoformat() if isinstance(self._schedule, ClockSchedule) else ""
        # Noted now: whatever ends the run may come when the next round is already in metrics and quarantine.
        self._last = Checkpoint(
            state,
            self._runs[0].config.to_mapping(),
            tuple(metrics.position() for metrics in self._metrics),
            asdict(self._roster.quarantine),
            started,
        )
        every = self._runs[0].config.checkpoint_every or self._eager
        stale = time.monotonic() - self._saved_at > _SECONDS_BETWEEN_CHECKPOINTS
        if state.slot.server_round % every == 0 if every else stale:
            self._save(self._last)

    def close(self) -> None:
        """Save what the last finished round left, whatever ended the run."""
        if self._last is not None:
            self._save(self._last)
        for metrics in self._metrics:
            metrics.close()

    def _save(self, checkpoint: Checkpoint) -> None:
        for metrics in self._metrics:
            metrics.sync()
        save_checkpoint(self._runs[0].folder.checkpoints, checkpoint)
        self._saved_at = time.monotonic()
