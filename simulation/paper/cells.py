"""The cells of the results page's tables: quantities over the seeds of a run, as Markdown. Accuracies are in %."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perennial.server.report import quantities
from perennial.server.report.columns import Evaluated
from perennial.simulation.paper.claims import MISSING
from perennial.simulation.paper.series import Series


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "Not run yet."
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def over(series: Sequence[Series], quantity: Callable[[Evaluated], float]) -> str:
    """A quantity over seeds: its mean, and least and greatest if there are several."""
    return spread([quantity(one.evaluated) for one in series])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Values of several seeds: their mean, and least and greatest if there are several."""
    if not values or np.isnan(values).any():
        return MISSING
    mean = f"{np.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def best(series: Sequence[Series]) -> str:
    return over(series, lambda one: 100 * quantities.best(one))


def last(series: Sequence[Series]) -> str:
    """The mean of the last cycle."""
    return over(series, lambda one: 100 * quantities.last_cycle(one).mean)


def wobble(series: Sequence[Series]) -> str:
    """The mean of the last cycle, and its least to most."""
    return f"{last(series)} ({_range(series)})" if series else MISSING


def accuracies(series: Sequence[Series]) -> list[str]:
    """The best, the mean of the last cycle, and its least to most."""
    return [best(series), last(series), _range(series)]


def _range(series: Sequence[Series]) -> str:
    cycles = [quantities.last_cycle(one.evaluated) for one in series]
    if not cycles:
        return MISSING
    return f"{100 * np.mean([one.least for one in cycles]):.1f} to {100 * np.mean([one.most for one in cycles]):.1f}"


def won(series: Sequence[Series]) -> str:
    """The separate chain's share of all votes, in %."""
    return over(series, lambda one: 100 * quantities.separate_share(one.won, one.votes))


def megabytes_per_round(series: Sequence[Series]) -> str:
    return over(series, lambda one: float(one.bytes[-1] / 1e6 / one.server_round[-1]))


def rounds_to(series: Sequence[Series], target: float) -> str:
    reached = _reached(series, target)
    if len(reached) < len(series):
        return f"not in {min(one.last_round for one in series):,}"
    return spread([one.server_round for one in reached], 0)


def cost(series: Sequence[Series], target: float) -> str:
    """Mean rounds, gigabytes and seconds until all seeds have measured the target."""
    reached = _reached(series, target)
    if not series or len(reached) < len(series):
        return MISSING
    rounds, size, seconds = (
        float(np.mean([getattr(one, name) for one in reached])) for name in ("server_round", "bytes", "seconds")
    )
    return f"{rounds:,.0f} rounds, {size / 1e9:.2f} GB, {seconds:,.0f} s"


def overhead(mm: Sequence[Series], mc: Sequence[Series], target: float) -> str:
    """The bytes of MC-PSGD over those of MM-PSGD until the target is measured, seed by seed."""
    pairs = list(zip(mm, mc, strict=False))
    few, many = (_reached(seeds, target) for seeds in zip(*pairs, strict=True))
    if len(few) < len(pairs) or len(many) < len(pairs):
        return MISSING
    return spread([b.bytes / a.bytes for a, b in zip(few, many, strict=True)], 2)


def _reached(series: Sequence[Series], target: float) -> list[quantities.Cost]:
    """What it took the seeds that measured the target."""
    return [cost for one in series if (cost := quantities.reach(one.evaluated, target))]
