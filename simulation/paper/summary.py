"""Series put together: of several parts, of the seeds of a run, and of the runs of one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perennial.server.report.columns import Evaluated, FloatArray, IntArray
from perennial.server.strategies.own.ways import trains
from perennial.simulation.paper.claims import ABLATIONS
from perennial.simulation.paper.plan import PARTS
from perennial.simulation.paper.series import Series


@dataclass(frozen=True, eq=False)
class Curve:
    """A value over rounds: the mean over seeds, and the least and greatest."""

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


def of_run(series: Iterable[Series], run: str) -> list[Series]:
    """Return the seeds of a run: those that are whole, or all while none is."""
    found = [one for one in series if one.run == run]
    return [one for one in found if one.whole] or found


def of_setting(series: Iterable[Series], strategy: str, setting: str, *, shuffled: bool = False) -> list[Series]:
    """Return the seeds of a strategy's run at a setting, chosen as by ``of_run``."""
    found = [one for one in series if (one.strategy, one.setting, one.shuffled) == (strategy, setting, shuffled)]
    return of_run(found, found[0].run) if found else []


def curve(
    series: Sequence[Series], value: Callable[[Evaluated], FloatArray] = lambda evaluated: evaluated.mean_accuracy
) -> Curve:
    """Return a value, the mean accuracy unless another is given, over the rounds that all seeds have in common."""
    seeds = [one.evaluated for one in series]
    rounds = seeds[0].server_round
    for one in seeds[1:]:
        rounds = np.intersect1d(rounds, one.server_round)
    values = np.stack([value(one)[np.isin(one.server_round, rounds)] for one in seeds])
    return Curve(rounds, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def forgotten(series: Series) -> dict[int, list[float]]:
    """Return by rounds since a block was last trained what the model's accuracy on it lost, once for every visit.

    Lost since the last round of the visit; the first cycle is left out, since blocks yet to come are not forgotten.
    """
    per_block, blocks = series.rounds_per_block, series.blocks
    accuracy, rounds = series.evaluated.accuracy, series.evaluated.server_round.tolist()
    place = {server_round: at for at, server_round in enumerate(rounds)}
    lost: dict[int, list[float]] = {}
    for at, server_round in enumerate(rounds):
        visit = (server_round - 1) // per_block
        for back in range(1, blocks):
            # The visit that many before this one was of another block, and none since was of it.
            end = (visit - back + 1) * per_block
            if visit - back < blocks or end not in place:
                continue
            block = (visit - back) % blocks
            change = float(accuracy[at, block] - accuracy[place[end], block])
            lost.setdefault(server_round - end, []).append(change)
    return dict(sorted(lost.items()))


def at_pace(series: Iterable[Series], others: Sequence[Series]) -> list[Series]:
    """Return the series as if a round had taken what it takes in ``others``, mean over seeds; as they are without."""
    if not others:
        return list(series)
    pace = float(np.mean([one.evaluated.seconds[-1] / one.last_round for one in others]))
    return [
        replace(one, evaluated=replace(one.evaluated, seconds=pace * one.evaluated.server_round.astype(np.float64)))
        for one in series
    ]


def training_seconds(series: Iterable[Series]) -> float:
    """Return the seconds of training: runs that were read from one pass, and so took as long, count once."""
    passes = set()
    for one in series:
        own = one.run if trains(one.strategy) else ""
        passes.add((float(one.evaluated.seconds[-1]), one.seed, one.setting, one.blocks, one.shuffled, own))
    return sum(seconds for seconds, *_ in passes)
