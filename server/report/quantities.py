"""The quantities that runs are compared by, each defined here and nowhere else: pure functions of columns.

The report and the paper's pages both ask here, so that one run has one number. NaN stands for what was not measured.
Of a task with another score, that score stands where accuracy is said; `Evaluated.scale` says which is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perennial.server.report.columns import Evaluated, FloatArray, IntArray, Rounds

NAN = float("nan")
# A mean of binary fractions may fall a little short of the decimal that it stands for.
_ROUNDING = 1e-9


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


def final(evaluated: Evaluated) -> float:
    """The last mean accuracy measured."""
    return float(evaluated.mean_accuracy[-1]) if len(evaluated) else NAN


def best(evaluated: Evaluated) -> float:
    """The best mean accuracy of all evaluations: the greatest, or of a score of which less is better, the least."""
    return float(evaluated.scale.best_of(evaluated.mean_accuracy)) if len(evaluated) else NAN


def last_cycle(evaluated: Evaluated) -> Spread:
    """The mean accuracies in the last cycle that is whole; before the first one is, all that were measured.

    A cycle may be shorter than the time between evaluations: if it has none, the latest accuracy stands for it.
    """
    if not len(evaluated):
        return Spread(NAN, NAN, NAN)
    over, values = int(evaluated.cycles_over[-1]), evaluated.mean_accuracy
    if over:
        inside = evaluated.cycle == over - 1
        values = values[inside] if inside.any() else values[-1:]
    return Spread(float(values.mean()), float(values.min()), float(values.max()))


def reach(evaluated: Evaluated, target: float) -> Cost | None:
    """What it took to first measure a mean accuracy as good as `target`, to rounding; None: never reached."""
    sign = -1.0 if evaluated.scale.better == "lower" else 1.0
    places = np.flatnonzero(sign * evaluated.mean_accuracy >= sign * target - _ROUNDING)
    if not len(places):
        return None
    at = places[0]
    return Cost(
        float(evaluated.mean_accuracy[at]),
        int(evaluated.server_round[at]),
        int(evaluated.bytes[at]),
        float(evaluated.seconds[at]),
    )


def separate_share(won: IntArray, votes: IntArray) -> float:
    """The share of the votes that the separate chain won, over all entries together; NaN without votes."""
    return float(won.sum() / votes.sum()) if votes.any() else NAN


def separate_share_at(evaluated: Evaluated) -> FloatArray:
    """The separate chain's share of the votes since the evaluation before, (V,)."""
    won, votes = evaluated.won, evaluated.votes
    return np.array([separate_share(won[at : at + 1], votes[at : at + 1]) for at in range(len(evaluated))])


def separate_share_in_windows(rounds: Rounds, window: int) -> tuple[IntArray, FloatArray]:
    """The separate chain's share of the votes in windows of `window` rounds (the last may be shorter).

    Returns the edges, (W+1,), in rounds (window w holds the rounds in (edge w, edge w+1]), and the shares, (W,).
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    won, votes, ends = rounds.won, rounds.votes, rounds.server_round
    starts = range(0, len(rounds), window)
    edges = [int(ends[start]) - 1 for start in starts] + [int(last) for last in ends[-1:]]
    shares = [separate_share(won[start : start + window], votes[start : start + window]) for start in starts]
    return np.array(edges, dtype=np.int64), np.array(shares)


def separate_share_by_block(rounds: Rounds, blocks: int) -> FloatArray:
    """The separate chain's share of the votes in each block's rounds, (M,)."""
    inside = [rounds.block == block for block in range(blocks)]
    return np.array([separate_share(rounds.won[here], rounds.votes[here]) for here in inside])
