"""The folders of a pass: one training that serves several runs, whose checkpoint is in the first run's folder.

RUN/config.yaml, initial.safetensors, metrics.jsonl, versions/N/, predictors/    of each run
RUN/checkpoint/                                                                  of the pass, in its first run's folder
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from flwr.app import ArrayRecord

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, RunError
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.common.task.divergence import LossWatch
from perennial.server.cohort.roster import Roster
from perennial.server.predict.publishing import (
    SECONDS_BETWEEN_VERSIONS,
    ModelSpec,
    Publication,
    model_bytes,
    publish,
    settle,
)
from perennial.server.run.checkpoint import Checkpoints, RunCheckpoint, new_identity, usable_state
from perennial.server.run.evaluate import Evaluator
from perennial.server.run.lock import hold
from perennial.server.run.metrics import MetricsFile
from perennial.server.run.pass_rows import row_of, train_losses
from perennial.server.run.prepare import Pass, Run
from perennial.server.run.tree import Tree
from perennial.server.strategies.own.readers import Reader
from perennial.server.strategies.own.ways import way_of
from perennial.server.strategies.record import FoldedRound

if TYPE_CHECKING:
    from perennial.server.strategies.base import BlockStrategy

LOG = logging.getLogger("perennial")
# Simulated rounds may take milliseconds; a checkpoint a few times a minute loses little and costs nothing.
_SECONDS_BETWEEN_CHECKPOINTS = 5.0
# A resumed run may differ in these: they say how and where to run. Clients spread over another number of nodes are
# averaged in another order, so `nodes` may change the last bits, and what a median over nodes is of.
_MAY_DIFFER = {
    "output", "nodes", "gpus-per-worker", "round-timeout", "fair-time", "node-timeout", "round-attempts",
    "checkpoint-every",
}  # fmt: skip


class Progress(Protocol):
    """Shows a run as it goes."""

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        """Called after each round; scores: each run's mean over blocks, in words, or None if it was not evaluated."""


@contextmanager
def held(runs: Sequence[Run]) -> Iterator[None]:
    """Hold the folders of runs; an InputError says who holds one of them already."""
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(hold(run.folder.path))
        yield


def check_same_config(saved: dict[str, Any], config: RunConfig) -> None:
    """Refuse to go on with another configuration than the checkpoint's, and name the first difference.

    A key that the checkpoint lacks is newer than it, and stood at its default.
    """
    saved = {**RunConfig().to_mapping(), **saved}
    for key, value in config.to_mapping().items():
        if key not in _MAY_DIFFER and saved.get(key) != value:
            raise InputError(
                f"--resume: the checkpoint has {key} = {saved.get(key)!r}, this run {value!r}; they must agree"
            )


class PassFolders:
    """Keeps what a pass must not lose: metrics of each round, scores where due, versions, checkpoints.

    eager: checkpoint every round where checkpoint-every is auto, and publish at most every few minutes; else
    checkpoint every few seconds, and publish whatever was evaluated.
    """

    def __init__(self, prepared: Pass, *, eager: bool, progress: Progress | None) -> None:
        self._pass, self._runs, self._config = prepared, prepared.runs, prepared.config
        self._eager, self._progress = eager, progress
        self._checkpoints = Checkpoints(prepared.folder.checkpoints)
        self._saved: RunCheckpoint | None = None
        self._metrics: list[MetricsFile] = []
        self._last: RunCheckpoint | None = None
        self._saved_at = self._published_at = time.monotonic()
        self._schedule: Schedule
        self._roster: Roster
        self._evaluator: Evaluator
        self._readers: Sequence[Reader]
        self._strategy: BlockStrategy
        self._identity = ""
        self._losses = LossWatch(self._config.task)

    # --- Before the first round ---------------------------------------------------------------------------------------

    def find(self) -> RunCheckpoint | None:
        """Return the checkpoint to go on from, if it fits; None: the pass has none."""
        saved = self._checkpoints.latest()
        if saved is not None:
            tree = saved.tree if isinstance(saved.tree, dict) else {}
            if not isinstance(tree.get("config"), dict):
                raise InputError(
                    f"{self._pass.folder.path} holds a run that start() of the library made; go on with it there"
                )
            check_same_config(tree["config"], self._config)
            if len(saved.metrics) != len(self._runs):
                raise InputError(
                    f"--resume: the checkpoint is of {len(saved.metrics)} runs that share their training, "
                    f"but here are {len(self._runs)}"
                )
        self._saved = saved
        return saved

    def start(self, initial: dict[str, Any]) -> None:
        """Begin anew where no checkpoint was found; open the metrics."""
        self._identity = self._saved.run if self._saved else new_identity()
        if self._saved is None:
            content = model_bytes(initial, "the initial model")
            for run in self._runs:
                run.folder.start(run.config, content)
        marks = self._saved.metrics if self._saved else [None] * len(self._runs)
        for run, mark in zip(self._runs, marks, strict=True):
            self._metrics.append(MetricsFile(run.folder.metrics, self._identity, mark))

    def attach(self, schedule: Schedule, roster: Roster, evaluator: Evaluator, readers: Sequence[Reader]) -> None:
        """Be told of what the training is made of; its states are kept, and are now those of the checkpoint."""
        self._schedule, self._roster, self._evaluator, self._readers = schedule, roster, evaluator, readers
        if self._saved is not None:
            with usable_state(str(self._pass.folder.checkpoints)):
                roster.quarantine.restore(self._saved.tree["quarantine"])

    # --- Told by the loop ---------------------------------------------------------------------------------------------

    def begin(self, strategy: BlockStrategy, initial_arrays: ArrayRecord) -> Tree | None:
        self._strategy = strategy
        for reader in self._readers:
            reader.begin(initial_arrays)
        if self._saved is None:
            return None
        with usable_state(str(self._pass.folder.checkpoints)):
            for reader, state in zip(self._readers, self._saved.tree["readers"], strict=True):
                reader.load_state_dict(state)
            return {key: self._saved.tree[key] for key in ("strategy", "generators")}

    def keep(self, state: Tree, rounds: Sequence[FoldedRound]) -> None:
        """Write the lines of the rounds that are over, publish what was evaluated, and save where it is due."""
        for record in rounds:
            self._tell(record)
        # Noted now: whatever ends the run may come when the next round is already in metrics and quarantine.
        trained = self._strategy.trained
        assert trained is not None, "a round was trained"
        marks = tuple(metrics.mark() for metrics in self._metrics)
        self._last = RunCheckpoint(self._identity, trained.server_round, self._tree(state), marks)
        every = self._config.checkpoint_every or self._eager
        stale = time.monotonic() - self._saved_at > _SECONDS_BETWEEN_CHECKPOINTS
        if trained.server_round % every == 0 if every else stale:
            self._save()

    def end(self) -> None:
        """Save, publish the final predictors, and say by their manifest that the run ended."""
        self._save()
        trained = self._strategy.trained
        if trained is None:
            return
        scores = self._scores()
        for index, run in enumerate(self._runs):
            publish(run.folder.path, self._publication(index, trained, scores))
            settle(run.folder.path)

    def close(self) -> None:
        """Save what the last finished round left, whatever ended the run."""
        try:
            self._save()
        finally:
            for metrics in self._metrics:
                metrics.close()

    # --- A round ------------------------------------------------------------------------------------------------------

    def _tell(self, record: FoldedRound) -> None:
        done = record.slot.server_round
        due = done % self._config.evaluate_every() == 0 or done == self._schedule.total_rounds
        scores = self._scores() if due else None
        means: list[str | None] = []
        score = self._pass.task.score
        for index, (run, metrics) in enumerate(zip(self._runs, self._metrics, strict=True)):
            found = scores[index] if scores else None
            row = row_of(record, way_of(run.config.strategy), found, score)
            metrics.append({**row, "nodes-online": self._roster.online})
            means.append(score.shown(sum(found) / len(found)) if found else None)
        if self._progress:
            self._progress.round_done(record, means, self._schedule)
        for diverged in self._losses.see(done, train_losses(record)):
            if self._config.on_divergence == "stop":
                raise RunError(f"{diverged}; the run is stopped, by on-divergence")
            LOG.warning("%s; the run goes on, by on-divergence", diverged)
        late = time.monotonic() - self._published_at > SECONDS_BETWEEN_VERSIONS
        # The last round's are published when the run ends.
        if due and (late or not self._eager) and done != self._schedule.total_rounds:
            for index, run in enumerate(self._runs):
                publish(run.folder.path, self._publication(index, record.slot, scores), durable=self._eager)
            self._published_at = time.monotonic()

    def _scores(self) -> list[list[float]] | None:
        return self._evaluator.accuracies([reader.models for reader in self._readers])

    def _tree(self, state: Tree) -> Tree:
        quarantine = asdict(self._roster.quarantine)
        return {
            "config": self._config.to_mapping(),
            **state,
            "readers": [reader.state_dict() for reader in self._readers],
            "quarantine": {key: {str(client): count for client, count in quarantine[key].items()}
                           for key in ("strikes", "until", "times", "wrong")},
        }  # fmt: skip

    def _save(self) -> None:
        if self._last is None:
            return
        for metrics in self._metrics:
            metrics.sync()
        self._checkpoints.save(self._last)
        self._last, self._saved_at = None, time.monotonic()

    def _publication(self, index: int, slot: Slot, scores: list[list[float]] | None) -> Publication:
        config, reader = self._runs[index].config, self._readers[index]
        mapping, signature = config.to_mapping(), self._pass.shards.signature
        kept = ("cycles", "rounds-per-block", "clock", "timezone")
        counts = reader.counts
        return Publication(
            run=self._identity,
            slot=slot,
            strategy=config.strategy,
            blocks=self._schedule.names,
            predictors=tuple(
                {name: array.numpy() for name, array in model.items()} if count else None
                for model, count in zip(reader.models, counts, strict=True)
            ),
            folded=counts,
            schedule={"blocks": config.blocks, **{key: mapping[key] for key in kept}},
            config=mapping,
            scores=tuple(scores[index]) if scores else (),
            score=self._pass.task.score.name,
            model=ModelSpec.of(config.task, config.model, signature),
        )
