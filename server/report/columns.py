"""A run as it was: its configuration, its rounds as columns, and of the evaluated rounds what runs are compared by.

Shapes: R rounds recorded, V of them evaluated, M blocks. NaN stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perennial.common.task.divergence import Divergence, find
from perennial.server.report.block_names import names_of
from perennial.server.report.scale import ACCURACY, Scale

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

NONE, MIXED, SEPARATE = -1, 0, 1  # codes of Rounds.chosen


@dataclass(frozen=True, eq=False)
class Rounds:
    """metrics.jsonl as columns of length R, named as its keys; `accuracy` is (R, M).

    Accuracies lie in [0, 1]; of a task with another score, that score stands in their place (`RunResult.scale`).
    """

    server_round: IntArray
    cycle: IntArray
    block: IntArray
    round_in_block: IntArray
    attempts: IntArray
    chosen: IntArray  # NONE, MIXED or SEPARATE
    clients_asked: IntArray
    clients_answered: IntArray
    clients_rejected: IntArray
    bytes_down: IntArray
    bytes_up: IntArray
    seconds: FloatArray
    train_loss_mixed: FloatArray
    train_loss_separate: FloatArray
    loss_mixed: FloatArray
    loss_separate: FloatArray
    mean_accuracy: FloatArray
    accuracy: FloatArray

    def __len__(self) -> int:
        return len(self.server_round)

    @property
    def bytes(self) -> IntArray:
        """Bytes sent down and up in each round, (R,)."""
        return self.bytes_down + self.bytes_up

    @property
    def votes(self) -> IntArray:
        """1 where a round chose between the chains, else 0, (R,)."""
        return np.where(self.chosen == NONE, 0, 1)

    @property
    def won(self) -> IntArray:
        """1 where a round chose the separate chain, else 0, (R,)."""
        return np.where(self.chosen == SEPARATE, 1, 0)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The evaluated rounds of a run as columns of length V: all that runs are compared by, wherever they come from."""

    server_round: IntArray
    cycle: IntArray
    block: IntArray
    cycles_over: IntArray  # how many cycles were over by then
    mean_accuracy: FloatArray  # over the blocks
    accuracy: FloatArray  # (V, M), on each block's own test set
    bytes: IntArray  # sent down and up until then
    seconds: FloatArray  # until then
    votes: IntArray  # rounds since the evaluation before that chose between the chains
    won: IntArray  # those of them that chose the separate chain
    scale: Scale = ACCURACY  # of the accuracies, or of the score that stands in their place

    def __len__(self) -> int:
        return len(self.server_round)

    def until(self, server_round: int) -> Evaluated:
        """Return the evaluations up to `server_round`."""
        kept = self.server_round <= server_round
        columns = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "scale"}
        return replace(self, **{name: column[kept] for name, column in columns.items()})


@dataclass(frozen=True)
class RejectionRow:
    """One update that the server refused."""

    server_round: int
    node: str
    clients: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Visit:
    """An unbroken stay in one block: its first and last round (`server-round`)."""

    cycle: int
    block: int
    first: int
    last: int


@dataclass(frozen=True)
class VersionRow:
    """A published version as its manifest tells of it; scores: of each block, None where not measured."""

    number: int
    published: str
    server_round: int
    block: int
    scores: tuple[float | None, ...]


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run. `manifest` is that of its predictors, which are written when it ends; empty until then.

    online: nodes at the last round, if it said so. sitting_out: nodes in quarantine then. versions: those that are
    kept, the newest first. touched: when the last line was written.
    """

    name: str
    config: Mapping[str, object]
    rounds: Rounds
    manifest: Mapping[str, object]
    rejections: tuple[RejectionRow, ...] = ()
    quarantined: Mapping[str, int] = field(default_factory=dict)  # node -> rounds it sat out
    scale: Scale = ACCURACY
    online: int | None = None
    sitting_out: tuple[str, ...] = ()
    versions: tuple[VersionRow, ...] = ()
    touched: datetime | None = None

    @property
    def blocks(self) -> int:
        """M."""
        return int(self.rounds.accuracy.shape[1])

    @property
    def block_names(self) -> tuple[str, ...]:
        """The names in the manifest, the configuration or its clock if it has all M, else `block 0`, `block 1`, …"""
        return names_of(self.blocks, self.manifest, self.config)

    @cached_property
    def diverged(self) -> tuple[Divergence, ...]:
        """The chains whose training loss has exploded, and since when."""
        rounds = self.rounds
        chains = {"mixed": rounds.train_loss_mixed, "separate": rounds.train_loss_separate}
        measured = (
            {chain: float(losses[place]) for chain, losses in chains.items() if not np.isnan(losses[place])}
            for place in range(len(rounds))
        )
        numbered = zip(rounds.server_round.tolist(), measured, strict=True)
        return tuple(find(numbered, self.config.get("task", "")))

    @cached_property
    def evaluated(self) -> Evaluated:
        """The rounds with a mean accuracy."""
        rounds = self.rounds
        places = np.flatnonzero(np.isfinite(rounds.mean_accuracy))
        return Evaluated(
            server_round=rounds.server_round[places],
            cycle=rounds.cycle[places],
            block=rounds.block[places],
            cycles_over=self._cycles_over(places),
            mean_accuracy=rounds.mean_accuracy[places],
            accuracy=rounds.accuracy[places],
            bytes=np.cumsum(rounds.bytes)[places],
            seconds=np.cumsum(rounds.seconds)[places],
            votes=_since_the_one_before(rounds.votes, places),
            won=_since_the_one_before(rounds.won, places),
            scale=self.scale,
        )

    @property
    def visits(self) -> tuple[Visit, ...]:
        """The stays in the blocks, in order."""
        rounds = self.rounds
        if not len(rounds):
            return ()
        leaves = np.flatnonzero((np.diff(rounds.cycle) != 0) | (np.diff(rounds.block) != 0))
        starts, ends = [0, *(leaves + 1)], [*leaves, len(rounds) - 1]
        return tuple(
            Visit(int(rounds.cycle[a]), int(rounds.block[a]), int(rounds.server_round[a]), int(rounds.server_round[b]))
            for a, b in zip(starts, ends, strict=True)
        )

    def _cycles_over(self, places: IntArray) -> IntArray:
        """How many cycles were over after the evaluated rounds, which stand at `places`, (V,)."""
        per_block = self.config.get("rounds-per-block")
        if isinstance(per_block, int) and not self.config.get("clock"):
            # By the round alone, so that files which keep nothing but evaluated rounds tell the same.
            return over_by_rounds(self.rounds.server_round[places], self.blocks, per_block)
        # By the clock, a cycle is over once a later one has begun, or the run has ended.
        over = self.rounds.cycle[places]
        over[-1:] = self.rounds.cycle[-1:] + bool(self.manifest)
        return over


def over_by_rounds(server_round: IntArray, blocks: int, rounds_per_block: int) -> IntArray:
    """How many cycles of a schedule by rounds are over once each of the rounds is."""
    return server_round // (blocks * rounds_per_block)


def _since_the_one_before(counts: IntArray, places: IntArray) -> IntArray:
    """The sums of `counts` up to each of the `places`, from the place before it on."""
    return np.diff(np.cumsum(counts)[places], prepend=0)
