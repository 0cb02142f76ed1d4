"""The folder of a run that a library's ``start(run_dir=…)`` keeps: the files that the project's own runs have.

RUN/config.yaml, initial.safetensors         what the run is, and the model that it began from
RUN/metrics.jsonl                            one line for each round
RUN/checkpoint/                              the whole state after the last two rounds; 0: before the first
RUN/versions/N/                              the predictors of evaluated rounds, or of every few minutes; the last few
RUN/predictors/                              the newest ones when the run has ended
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from flwr.app import ArrayRecord

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.schedule import Slot
from perennial.common.task.divergence import LossWatch
from perennial.common.wire.chains import CHAINS
from perennial.server.predict.publishing import (
    SECONDS_BETWEEN_VERSIONS,
    Publication,
    model_bytes,
    publish,
    settle,
)
from perennial.server.predict.versions import FINAL, MANIFEST, VERSIONS, check_final
from perennial.server.run import generators
from perennial.server.run.checkpoint import Checkpoints, RunCheckpoint, new_identity
from perennial.server.run.files import replace_file
from perennial.server.run.library_rows import accuracy_of, config_of, identity_of, row_of, schedule_of_run
from perennial.server.run.lock import hold
from perennial.server.run.metrics import MetricsFile
from perennial.server.run.tree import DamagedError, Tree, first_difference
from perennial.server.strategies.record import FoldedRound

if TYPE_CHECKING:
    from perennial.server.strategies.base import BlockStrategy

LOG = logging.getLogger("flwr")
# What a user has no other name for.
_CALLED = {"inner": "strategy inside"}


@contextmanager
def kept_in(run_dir: str | Path, about: Mapping[str, Any] | None = None) -> Iterator[LibraryFolder]:
    """Hold the folder ``run_dir``, which is made if it is missing, for one call of ``start``.

    about: what else a run that goes on must share with its first part, by keys that config.yaml then has.
    """
    path = _absolute(run_dir)
    LOG.info("Run folder: %s", path)
    with hold(path):
        folder = LibraryFolder(path, about or {})
        try:
            yield folder
        finally:
            folder.close()


class LibraryFolder:
    """One run in a folder that this process holds."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path, self._about = path, dict(about)
        self._checkpoints = Checkpoints(path / "checkpoint")
        self._strategy: BlockStrategy
        self._metrics: MetricsFile | None = None
        self._run = ""
        # The round whose predictors were published last, by this process.
        self._published, self._published_at = 0, time.monotonic()
        self._identity: Tree = {}
        self._config: dict[str, Any] = {}
        # Of each block's predictor, which changes in the block's own rounds alone.
        self._accuracy: list[float | None] = []
        self._losses = LossWatch()

    def begin(self, strategy: BlockStrategy, initial_arrays: ArrayRecord) -> Tree | None:
        """Return the state after the last round that is kept here; None: the folder is new.

        An InputError if the folder holds another run.
        """
        self._strategy = strategy
        state = {"strategy": strategy.state_dict(), "generators": generators.save()}
        identity = identity_of(state["strategy"], initial_arrays)
        self._config = {**config_of(identity, strategy.schedule, strategy.mixed.config), **self._about}
        self._identity = {**identity, **self._about}
        saved = self._checkpoints.latest()
        if saved is None:
            self._begin_anew(state, initial_arrays)
            return None
        self._refuse_another(saved.tree)
        self._run, self._accuracy = saved.run, list(saved.tree["accuracy"])
        self._metrics = MetricsFile(self._path / "metrics.jsonl", self._run, saved.metrics[0])
        self._write_config()
        return {"strategy": saved.tree["strategy"], "generators": saved.tree["generators"]}

    def keep(self, state: Tree, rounds: Sequence[FoldedRound]) -> None:
        """Write the lines of the rounds that are over, then the checkpoint, which says where the lines end."""
        # A run that goes on has not ended; its versions stay.
        (self._path / FINAL / MANIFEST).unlink(missing_ok=True)
        assert self._metrics is not None, "begin comes first"
        for record in rounds:
            if self._strategy.one_model:
                # What was measured before was of another model.
                self._accuracy = [None] * len(self._accuracy)
            self._accuracy[record.slot.block] = accuracy_of(record)
            row = row_of(record, self._accuracy)
            self._metrics.append(row)
            for diverged in self._losses.see(row["server-round"], {one: row[f"train-loss-{one}"] for one in CHAINS}):
                LOG.warning("%s; lower the learning rate of your clients", diverged.fact)
        self._save(state)
        if rounds:
            self._publish_if_due(rounds[-1])

    def end(self) -> None:
        """Publish the predictors; nothing if the newest ones are published already."""
        trained = self._strategy.trained
        if trained is None or self._is_published(trained.server_round):
            return
        if self._published != trained.server_round:
            publish(self._path, self._publication(trained))
        settle(self._path)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()

    # --- Beginning ----------------------------------------------------------------------------------------------------

    def _begin_anew(self, state: Tree, initial: ArrayRecord) -> None:
        """Make the files; the checkpoint of round 0 comes last, and lets a run go on that is killed in its first."""
        rows = self._path / "metrics.jsonl"
        if (rows.exists() and rows.stat().st_size) or any((self._path / one).exists() for one in (VERSIONS, FINAL)):
            raise InputError(f"{self._path} holds a run without its checkpoint, which cannot go on; "
                             "choose another run_dir, or empty it")  # fmt: skip
        self._run, self._accuracy = new_identity(), [None] * len(self._strategy.schedule.names)
        arrays = {name: array.numpy() for name, array in initial.items()}
        replace_file(self._path / "initial.safetensors", model_bytes(arrays, "initial_arrays"))
        self._write_config()
        self._metrics = MetricsFile(rows, self._run)
        self._save(state)

    def _refuse_another(self, saved: Tree) -> None:
        theirs = saved.get("about") if isinstance(saved, dict) else None
        if not isinstance(theirs, dict):
            raise InputError(f"{self._path} holds a run that start() did not make; choose another run_dir")
        if place := first_difference(theirs, self._identity):
            # Their values whole: a place alone says little.
            what = next((one for one in self._identity if place.startswith(one)), "")
            called = _CALLED.get(what, what)
            raise InputError(
                f"{self._path} holds a run with another {called}{place[len(what) :]}: its {called} is "
                f"{shown(theirs.get(what))}, not "
                f"{shown(self._identity.get(what))}; start it as it was, or choose another run_dir"
            )

    def _write_config(self) -> None:
        text = yaml.safe_dump(self._config, sort_keys=False, allow_unicode=True)
        replace_file(self._path / "config.yaml", text.encode())

    # --- Going on and ending ------------------------------------------------------------------------------------------

    def _save(self, state: Tree) -> None:
        assert self._metrics is not None, "begin comes first"
        self._metrics.sync()
        trained = self._strategy.trained
        tree = {"about": self._identity, **state, "accuracy": self._accuracy}
        server_round = trained.server_round if trained else 0
        self._checkpoints.save(RunCheckpoint(self._run, server_round, tree, (self._metrics.mark(),)))

    def _publish_if_due(self, record: FoldedRound) -> None:
        evaluated = record.evaluate_metrics is not None or record.server_metrics is not None
        if evaluated or time.monotonic() - self._published_at > SECONDS_BETWEEN_VERSIONS:
            # The checkpoint is on disk: what a power cut damages here is published again.
            publish(self._path, self._publication(record.slot), durable=False)
            self._published, self._published_at = record.slot.server_round, time.monotonic()

    def _is_published(self, server_round: int) -> bool:
        if not (self._path / FINAL / MANIFEST).exists():
            return False
        try:
            manifest = check_final(self._path)
        except DamagedError as error:
            LOG.warning("%s; the predictors are written again from the checkpoint", error)
            return False
        return bool(manifest["run"] == self._run and manifest["slot"]["server-round"] == server_round)

    def _publication(self, slot: Slot) -> Publication:
        strategy = self._strategy
        blocks, models = strategy.schedule.names, strategy.predictors.models
        return Publication(
            run=self._run,
            slot=slot,
            strategy=self._config["strategy"],
            blocks=blocks,
            predictors=tuple(
                {name: array.numpy() for name, array in models[block].items()} if block in models else None
                for block in blocks
            ),
            folded=tuple(strategy.predictors.folded.get(block, 0) for block in blocks),
            schedule=schedule_of_run(strategy.schedule),
            config=self._config,
            scores=tuple(self._accuracy),
        )


def discard_run(path: Path) -> None:
    """Remove the run in a folder, so that another one can begin there; nothing else that lies there."""
    for name in ("checkpoint", VERSIONS, FINAL):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in ("metrics.jsonl", "config.yaml", "initial.safetensors"):
        (path / name).unlink(missing_ok=True)


def _absolute(run_dir: str | Path) -> Path:
    if not isinstance(run_dir, str | Path) or not str(run_dir):
        raise InputError(f"run_dir must be the path of a folder, got {shown(run_dir)}")
    path = Path(run_dir).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise InputError(f"run_dir {path} is no folder; choose another")
    return path
