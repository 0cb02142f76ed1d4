"""The figures of the page on real data: where everyone ended, and how they got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from perennial.server.report.drawing import FAINT, GRID, INK, blank, dress, legend
from perennial.simulation.paper import summary
from perennial.simulation.paper.panels import curve, from_zero, panels
from perennial.simulation.paper.series import Series
from perennial.simulation.real.contenders import CONTENDERS
from perennial.simulation.real.gains import level

_SHOWN = ("fedavg", "fedavg-shuffled", "told-block-fedavg", "mm-psgd", "mc-psgd", "told-block-mm-psgd")


def draw(found: Mapping[str, Sequence[Series]]) -> dict[str, Figure]:
    """Return every figure that there is something for, by file name without its ending."""
    there = {name: series for name, series in found.items() if series}
    return {"ends": ends(there), "curves": curves(there)} if there else {}


def ends(found: Mapping[str, Sequence[Series]]) -> Figure:
    """The mean of the last cycle with its interval, a panel for each data set and a line for each contender."""
    shown = [one for one in CONTENDERS if any(summary.of_run(series, one.run) for series in found.values())]
    figure = blank(10.0, 1.2 + 0.34 * len(shown))
    made = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (name, series) in zip(made, found.items(), strict=True):
        axes.set_title(name.capitalize(), loc="left", color=INK, fontsize=11, fontweight="bold")
        dress(axes, "mean accuracy of the last cycle, %, with 95 % interval", ticks=6)
        axes.grid(False)
        axes.grid(True, axis="x", color=GRID, linewidth=0.8)
        for place, one in enumerate(shown):
            if summary.of_run(series, one.run):
                end = level(series, one.run)
                axes.errorbar(end.mean, -place, xerr=end.reach, fmt="o", color=one.style.color, markersize=6, capsize=3)
                axes.annotate(f"{end.mean:.1f}", (end.mean, -place), xytext=(0, 5), textcoords="offset points",
                              ha="center", fontsize=7.5, color=FAINT)  # fmt: skip
        axes.margins(x=0.08, y=0.06)
    made[0].set_yticks([-place for place in range(len(shown))], [one.label for one in shown], color=INK, fontsize=9)
    return figure


def curves(found: Mapping[str, Sequence[Series]]) -> Figure:
    """The accuracy over rounds, a panel for each data set; bands span the seeds."""
    figure, made = panels([f"{name.capitalize()}: mean accuracy over blocks" for name in found])
    shown = [one for one in CONTENDERS if one.run in _SHOWN]
    for axes, series in zip(made, found.values(), strict=True):
        for one in shown:
            if seeds := summary.of_run(series, one.run):
                curve(axes, seeds, one.style)
    from_zero(made)
    legend(figure, {one.label: one.style for one in shown})
    return figure
