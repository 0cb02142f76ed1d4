"""What stands behind and beside the lines of a figure: bands for the stays in blocks, and the runs' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perennial.server.report.columns import RunResult, Visit
from perennial.server.report.drawing import FAINT, TINT, Style, legend, plain
from perennial.server.report.quantities import final
from perennial.server.report.table import shared_block_names

MOST_VISITS_SHADED = 60
MOST_NAMED_AT_LINES = 6
LONGEST_NAME_AT_LINES = 26


def shade(axes: Axes, runs: Sequence[RunResult], only: int | None = None, named: bool = False) -> None:
    """Tint every second stay in a block, or those in the block `only`, if the runs share one schedule of few stays."""
    axes.set_xlim(0, max(int(run.rounds.server_round[-1]) for run in runs))
    visits = max((run.visits for run in runs), key=len)
    tinted = [visit for place, visit in enumerate(visits) if visit.block == only or (only is None and place % 2 == 0)]
    most = MOST_VISITS_SHADED if only is not None else MOST_VISITS_SHADED // 2
    if len(tinted) > most or any(not _begins(run.visits, visits) for run in runs):
        return
    for visit in tinted:
        # A round takes the space from the round before to itself.
        axes.axvspan(visit.first - 1, visit.last, color=TINT, linewidth=0, zorder=0)
    if not named:
        return
    names = shared_block_names(runs)
    marks = [(visit, names[visit.block]) for visit in visits]
    if len(marks) * max(len(name) for name in names) > 100:
        starts = [visit for place, visit in enumerate(visits) if place == 0 or visit.cycle != visits[place - 1].cycle]
        marks = [(visit, f"cycle {visit.cycle}") for visit in starts if len(starts) <= 12]
    for visit, text in marks:
        at = (visit.first - 1, 1.01)
        axes.annotate(
            plain(text), at, xycoords=("data", "axes fraction"), color=FAINT, fontsize=8, ha="left", va="bottom"
        )


def _begins(some: Sequence[Visit], all_of_it: Sequence[Visit]) -> bool:
    """Whether a run of the stays `some`, perhaps broken off in the last of them, is on the schedule `all_of_it`."""
    places = [(visit.cycle, visit.block, visit.first) for visit in some]
    return places == [(visit.cycle, visit.block, visit.first) for visit in all_of_it[: len(places)]]


def name_runs(figure: Figure, axes: Axes, runs: Sequence[RunResult], look: Mapping[str, Style]) -> None:
    """Write each run's name and last value at its line's end, if they fit and the lines end together; else a legend."""
    last = [int(run.evaluated.server_round[-1]) for run in runs]
    low, high = axes.get_xlim()
    together = max(last) - min(last) <= 0.02 * (high - low)
    if not together or len(runs) > MOST_NAMED_AT_LINES or max(len(run.name) for run in runs) > LONGEST_NAME_AT_LINES:
        legend(figure, {run.name: look[run.name] for run in runs})
        return
    bottom, top = axes.get_ylim()
    values = [final(run.evaluated) for run in runs]
    places = [run.scale.factor * value for run, value in zip(runs, values, strict=True)]
    heights = apart([(place - bottom) / (top - bottom) for place in places], gap=0.05)
    for run, x, value, height in zip(runs, last, values, heights, strict=True):
        color = look[run.name].color
        axes.annotate(
            plain(f"{run.name}  {run.scale.text(value)}{run.scale.unit}"),
            xy=(x, run.scale.factor * value),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=color,
            fontsize=9,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.7,
                "shrinkA": 2,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            },
        )


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights in [0, 1] apart to at least `gap`, keeping their order, as evenly up as down, but not above 1."""
    order = np.argsort(heights, kind="stable")
    up = [heights[index] for index in order]
    down = list(up)
    for index in range(1, len(up)):
        up[index] = max(up[index], up[index - 1] + gap)
        down[-1 - index] = min(down[-1 - index], down[-index] - gap)
    # Both are far enough apart, so their means are.
    placed = [(high + low) / 2 for high, low in zip(up, down, strict=True)]
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], 1.0 - gap * (len(placed) - 1 - index))
    return [placed[place] for place in np.argsort(order)]
