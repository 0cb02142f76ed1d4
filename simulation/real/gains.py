"""What each contender reached on real data, with 95 % intervals over the seeds, as Markdown. Accuracies are in %."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perennial.server.report import quantities
from perennial.server.report.columns import Evaluated
from perennial.simulation.paper import cells, summary
from perennial.simulation.paper.claims import MISSING
from perennial.simulation.paper.series import Series
from perennial.simulation.real.contenders import CONTENDERS

# Student's t at 97.5 %, by the number of seeds.
_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and how far its 95 % interval reaches to each side; NaN of a single seed."""

    mean: float
    reach: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        reach = _T[len(values)] * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        return cls(float(np.mean(values)), float(reach))

    @property
    def low(self) -> float:
        return self.mean - self.reach

    @property
    def high(self) -> float:
        return self.mean + self.reach

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if np.isnan(self.reach) else f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]"

    def signed(self, digits: int = 1) -> str:
        """As text, with the signs of a difference."""
        # Nought added: what rounds to nought has no minus.
        mean, low, high = (f"{round(value, digits) + 0.0:+.{digits}f}" for value in (self.mean, self.low, self.high))
        return mean if np.isnan(self.reach) else f"{mean} [{low}, {high}]"


def over_a_cycle(one: Evaluated) -> float:
    """The mean accuracy of the last cycle: what a user gets who asks at any time of it."""
    return 100 * quantities.last_cycle(one).mean


def latest(one: Evaluated) -> float:
    """The accuracy after the last round."""
    return 100 * quantities.final(one)


def level(series: Sequence[Series], run: str, value: Callable[[Evaluated], float] = over_a_cycle) -> Interval:
    return Interval.of([value(one.evaluated) for one in summary.of_run(series, run)])


def difference(series: Sequence[Series], run: str, other: str) -> Interval:
    """How much better a run is than another, seed by seed, in points of the mean over the last cycle."""
    values = [{one.seed: over_a_cycle(one.evaluated) for one in summary.of_run(series, name)} for name in (run, other)]
    return Interval.of([values[0][seed] - values[1][seed] for seed in sorted(values[0].keys() & values[1].keys())])


def table(series: Sequence[Series]) -> str:
    """Everyone who was run, with what it costs and what must be known."""
    rows = []
    for one in CONTENDERS:
        if found := summary.of_run(series, one.run):
            gains = [_over(series, one.run, "fedavg", 1), _over(series, one.run, "mm-psgd", 2)]
            levels = [str(level(series, one.run)), *gains, str(level(series, one.run, latest))]
            rows.append([one.label, *levels, f"{_kilobytes(found[0].evaluated):.0f}", one.needs, one.costs])
    columns = ["mean of the last cycle", "over FedAvg, points", "over MM-PSGD, points", "after the last round",
               "kB a round", "to be known", "costs beside FedAvg's"]  # fmt: skip
    return cells.table(["", *columns], rows)


def sentence(series: Sequence[Series]) -> str:
    """Say whether a predictor for each block, or a feature, or both are worth it here."""
    needed = ("fedavg", "mm-psgd", "told-block-fedavg", "told-block-mm-psgd")
    if missing := [run for run in needed if not summary.of_run(series, run)]:
        return f"Not run yet: {', '.join(missing)}."
    gain, told = difference(series, "mm-psgd", "fedavg"), difference(series, "told-block-fedavg", "mm-psgd")
    feature = difference(series, "told-block-mm-psgd", "told-block-fedavg")
    predictors = difference(series, "told-block-mm-psgd", "mm-psgd")
    seeds = len(summary.of_run(series, "mm-psgd"))
    if seeds == 1:
        return (
            f"One seed so far, which gives no interval and no verdict: MM-PSGD is {gain.signed()} points from FedAvg, "
            f"FedAvg that is told the block {told.signed()} from MM-PSGD, and MM-PSGD that is told the block "
            f"{feature.signed()} from FedAvg that is told it, and {predictors.signed()} from MM-PSGD."
        )
    return (
        f"**A predictor for each block is worth {gain.signed(2)} points against FedAvg; FedAvg that is told the block "
        f"does {_verdict(told)} these predictors ({told.signed(2)}); and predictors over a model that is told "
        f"do {_verdict(feature)} that model alone ({feature.signed(2)}), and {_verdict(predictors)} predictors alone "
        f"({predictors.signed(2)}; {seeds} seeds).**"
    )


def movement(series: Sequence[Series]) -> str:
    """Say how far the numbers still moved in the second half of the rounds: whether the curves are flat."""
    moved = {one.label: rise(series, one.run).mean for one in CONTENDERS if summary.of_run(series, one.run)}
    if not moved:
        return "Not run yet."
    least, most = min(moved, key=moved.__getitem__), max(moved, key=moved.__getitem__)
    return (
        f"From the middle of the run to its end these means moved by {moved[least]:+.1f} ({least}) to "
        f"{moved[most]:+.1f} points ({most})."
    )


def rise(series: Sequence[Series], run: str) -> Interval:
    """How much better the last cycle is than the one in the middle of the run, in points."""
    found = summary.of_run(series, run)
    halves = [one.until(one.planned // 2) for one in found]
    pairs = zip(found, halves, strict=True)
    return Interval.of([over_a_cycle(one.evaluated) - over_a_cycle(half.evaluated) for one, half in pairs])


def _over(series: Sequence[Series], run: str, other: str, digits: int) -> str:
    if run == other or not summary.of_run(series, other):
        return MISSING
    return difference(series, run, other).signed(digits)


def _kilobytes(one: Evaluated) -> float:
    return float(one.bytes[-1] / 1e3 / one.server_round[-1])


def _verdict(difference: Interval) -> str:
    """Say how something stands to what it is more or less than."""
    if difference.low > 0:
        return "better than"
    return "worse than" if difference.high < 0 else "as well as"
