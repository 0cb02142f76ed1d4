"""A run as it was: its configuration, its rounds as columns, and the quantities runs are compared by.

Shapes: R rounds recorded, V of them evaluated, M blocks. NaN stands for what was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

NONE, MIXED, SEPARATE = -1, 0, 1  # codes of Rounds.chosen
# Where a run is kept says nothing about what it is.
_NOT_COMPARED = frozenset({"output"})


@dataclass(frozen=True, eq=False)
class Rounds:
    """metrics.jsonl as columns of length R, named as its keys; `accuracy` is (R, M), accuracies lie in [0, 1]."""

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
class Cost:
    """An accuracy, and the round, bytes (down and up) and seconds it took until it was first measured."""

    accuracy: float
    server_round: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Spread:
    """Mean, least and greatest of the mean accuracies measured in some stretch of a run."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run. `manifest` is that of its predictors, empty while there are none."""

    name: str
    config: Mapping[str, object]
    rounds: Rounds
    manifest: Mapping[str, object]
    rejections: tuple[RejectionRow, ...] = ()
    quarantined: Mapping[str, int] = field(default_factory=dict)  # node -> rounds it sat out

    @property
    def blocks(self) -> int:
        """M."""
        return int(self.rounds.accuracy.shape[1])

    @property
    def block_names(self) -> tuple[str, ...]:
        """The names in the manifest if it has all M, else `block 0`, `block 1`, …"""
        names = self.manifest.get("blocks")
        if isinstance(names, Sequence) and not isinstance(names, str) and len(names) == self.blocks:
            return tuple(str(name) for name in names)
        return tuple(f"block {block}" for block in range(self.blocks))

    @property
    def evaluated(self) -> IntArray:
        """Indices (V,) of the rounds with a mean accuracy."""
        return np.flatnonzero(np.isfinite(self.rounds.mean_accuracy))

    @property
    def accuracy_rounds(self) -> IntArray:
        """`server-round` of the evaluated rounds, (V,)."""
        return self.rounds.server_round[self.evaluated]

    @property
    def mean_accuracy(self) -> FloatArray:
        """Mean accuracy over blocks at the evaluated rounds, (V,)."""
        return self.rounds.mean_accuracy[self.evaluated]

    @property
    def block_accuracy(self) -> FloatArray:
        """Accuracy on each block's test set at the evaluated rounds, (V, M)."""
        return self.rounds.accuracy[self.evaluated]

    @property
    def cumulative_bytes(self) -> IntArray:
        """Bytes sent down and up until each round's end, (R,)."""
        return np.cumsum(self.rounds.bytes_down + self.rounds.bytes_up)

    @property
    def cumulative_seconds(self) -> FloatArray:
        """Seconds until each round's end, (R,)."""
        return np.cumsum(self.rounds.seconds)

    @property
    def final(self) -> float | None:
        """The last mean accuracy measured; None: none was."""
        return float(self.mean_accuracy[-1]) if len(self.evaluated) else None

    @property
    def best(self) -> Cost | None:
        """The greatest mean accuracy, where it was first measured; None: none was."""
        return self._cost(int(self.evaluated[np.argmax(self.mean_accuracy)])) if len(self.evaluated) else None

    @property
    def last_cycle(self) -> Spread | None:
        """Mean accuracies of the last cycle in which any was measured; None: none was."""
        if not len(self.evaluated):
            return None
        cycles = self.rounds.cycle[self.evaluated]
        values = self.mean_accuracy[cycles == cycles[-1]]
        return Spread(float(values.mean()), float(values.min()), float(values.max()))

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

    @property
    def has_choice(self) -> bool:
        """Whether any round chose between the chains."""
        return bool(np.any(self.rounds.chosen != NONE))

    def reach(self, target: float) -> Cost | None:
        """What it took to first measure a mean accuracy of at least `target`, to rounding; None: never reached."""
        reached = self.evaluated[self.mean_accuracy >= target - 1e-9]
        return self._cost(int(reached[0])) if len(reached) else None

    def separate_share(self, window: int) -> tuple[IntArray, FloatArray]:
        """Share of rounds won by the separate chain in windows of `window` rounds (the last may be shorter).

        Returns the edges, (W+1,), in rounds (window w holds the rounds in (edge w, edge w+1]), and the shares, (W,);
        NaN: no round of the window chose. The mixed chain won the rest.
        """
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        chosen, ends = self.rounds.chosen, self.rounds.server_round
        starts = range(0, len(chosen), window)
        edges = [int(ends[start]) - 1 for start in starts] + [int(last) for last in ends[-1:]]
        shares = [share_won(chosen[start : start + window]) for start in starts]
        return np.array(edges, dtype=np.int64), np.array(shares)

    @property
    def separate_share_by_block(self) -> FloatArray:
        """Share of each block's rounds won by the separate chain, (M,); NaN: none of them chose."""
        return np.array([share_won(self.rounds.chosen[self.rounds.block == block]) for block in range(self.blocks)])

    def _cost(self, index: int) -> Cost:
        return Cost(
            float(self.rounds.mean_accuracy[index]),
            int(self.rounds.server_round[index]),
            int(self.cumulative_bytes[index]),
            float(self.cumulative_seconds[index]),
        )


@dataclass(frozen=True)
class Comparison:
    """Configurations side by side: keys with one value in all of them, and keys with a value for each run."""

    shared: Mapping[str, object]
    differing: Mapping[str, tuple[object, ...]]  # None: the run does not have the key


def compare(runs: Sequence[RunResult]) -> Comparison:
    """Sort the runs' configuration keys into shared and differing, in order of first appearance."""
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.config) if key not in _NOT_COMPARED]
    columns = {key: tuple(run.config.get(key) for run in runs) for key in keys}
    same = {key: values[0] for key, values in columns.items() if all(value == values[0] for value in values)}
    return Comparison(same, {key: values for key, values in columns.items() if key not in same})


def share_won(chosen: IntArray) -> float:
    """Return the share of the votes that the separate chain won; NaN without votes."""
    voted = np.count_nonzero(chosen != NONE)
    return np.count_nonzero(chosen == SEPARATE) / voted if voted else float("nan")
