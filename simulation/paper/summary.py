"""The quantities that the paper and we are compared by, of series of one or more seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perennial.common.command.config import NEIGHBOURS
from perennial.server.report.quantities import FloatArray, IntArray, Spread
from perennial.simulation.paper.claims import ABLATIONS
from perennial.simulation.paper.plan import PARTS
from perennial.simulation.paper.series import Series


@dataclass(frozen=True)
class Reached:
    """What it took until an accuracy was first measured."""

    server_round: int
    megabytes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy over rounds: the mean over seeds, and the least and greatest."""

    rounds: IntArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


def completed(found: Mapping[str, Sequence[Series]]) -> dict[str, list[Series]]:
    """Return the series by experiment with what some leave to others: their first seed's runs, cut to their length."""
    whole = {name: list(series) for name, series in found.items()}
    for part in PARTS:
        if whole[part.name]:
            length = max(one.planned for one in whole[part.name])
            whole[part.name] += [
                replace(one.until(length), setting=setting)
                for name, setting in part.known
                for one in found[name]
                if one.seed == part.seeds[0] and one.run not in ABLATIONS
            ]
    return whole


def last_cycle(series: Series) -> Spread:
    """Return the accuracies over the last cycle that is whole; over all that is measured before the first one is.

    Where nothing was measured in that cycle, which may be shorter than the time between evaluations: the latest.
    """
    length = series.cycle_length
    ended = int(series.rounds[-1]) // length
    inside = series.rounds > 0 if ended == 0 else (series.rounds > (ended - 1) * length)
    inside &= series.rounds <= max(ended, 1) * length
    values = series.mean[inside] if inside.any() else series.mean[-1:]
    return Spread(float(values.mean()), float(values.min()), float(values.max()))


def best(series: Series) -> float:
    return float(series.mean.max())


def reach(series: Series, target: float) -> Reached | None:
    """Return what it took to first measure ``target``; None: never reached."""
    places = np.flatnonzero(series.mean >= target)
    if not len(places):
        return None
    at = places[0]
    return Reached(int(series.rounds[at]), float(series.megabytes[at]), float(series.seconds[at]))


def separate_share(series: Series) -> float:
    """Return the share of all rounds that the separate chain won; NaN where nothing was chosen."""
    spans = np.diff(np.concatenate([[0], series.rounds]))
    voted = np.isfinite(series.separate)
    return float(np.average(series.separate[voted], weights=spans[voted])) if voted.any() else float("nan")


def of_run(series: Iterable[Series], run: str) -> list[Series]:
    """Return the seeds of a run: those that are whole, or all while none is."""
    found = [one for one in series if one.run == run]
    return [one for one in found if one.whole] or found


def curve(series: Sequence[Series], value: Callable[[Series], FloatArray] = lambda one: one.mean) -> Curve:
    """Return the accuracy over the rounds that all seeds have in common."""
    rounds = series[0].rounds
    for one in series[1:]:
        rounds = np.intersect1d(rounds, one.rounds)
    values = np.stack([value(one)[np.isin(one.rounds, rounds)] for one in series])
    return Curve(rounds, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def forgotten(series: Series) -> dict[int, list[float]]:
    """Return by rounds since a block was last trained what the model's accuracy on it lost, once for every visit.

    Lost since the last round of the visit; the first cycle is left out, since blocks yet to come are not forgotten.
    """
    per_block, blocks = series.rounds_per_block, series.blocks
    place = {int(server_round): at for at, server_round in enumerate(series.rounds)}
    lost: dict[int, list[float]] = {}
    for at, server_round in enumerate(series.rounds.tolist()):
        visit = (server_round - 1) // per_block
        for back in range(1, blocks):
            # The visit that many before this one was of another block, and none since was of it.
            end = (visit - back + 1) * per_block
            if visit - back < blocks or end not in place:
                continue
            block = (visit - back) % blocks
            change = float(series.accuracy[at, block] - series.accuracy[place[end], block])
            lost.setdefault(server_round - end, []).append(change)
    return dict(sorted(lost.items()))


def at_pace(series: Iterable[Series], others: Sequence[Series]) -> list[Series]:
    """Return the series as if a round had taken what it takes in ``others``, mean over seeds; as they are without."""
    if not others:
        return list(series)
    seconds = float(np.mean([one.seconds[-1] / one.rounds[-1] for one in others]))
    return [replace(one, seconds=seconds * one.rounds.astype(np.float64)) for one in series]


def training_seconds(series: Iterable[Series]) -> float:
    """Return the seconds of training: runs that were read from one pass count once."""
    passes: dict[tuple[int, str, int, bool, str], float] = {}
    for one in series:
        own = one.run if one.strategy in NEIGHBOURS else ""
        key = (one.seed, one.setting, one.blocks, one.shuffled, own)
        passes[key] = max(passes.get(key, 0.0), float(one.seconds[-1]))
    return sum(passes.values())
