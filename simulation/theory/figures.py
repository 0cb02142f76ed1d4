"""Figures of the measured excess losses; every function returns a Figure of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from perennial.server.report.drawing import FAINT, GRID, INK, blank
from perennial.simulation.theory.problem import Floats
from perennial.simulation.theory.slopes import mean_interval
from perennial.simulation.theory.study import Setting, Variable
from perennial.simulation.theory.tabulate import VARIABLES, series

BEST, OWN_BEST = "$F(x^*)$", "$F_m(x^*_m)$"
NAMES: dict[Variable, str] = {"T": "T, iterations", "N": "N, clients", "M": "M, blocks"}


@dataclass(frozen=True)
class Look:
    """A line of a figure. Colours are Okabe and Ito's; marks tell lines apart without them."""

    label: str
    color: str
    mark: str
    dash: str = "-"


GLOBAL = {
    "mm-path": Look("mixed chain, mean over rounds", "#56B4E9", "v", "--"),
    "mm": Look("MM-PSGD's predictors", "#0072B2", "o"),
    "mc": Look("MC-PSGD's predictors", "#D55E00", "s"),
    "fedavg-last": Look("FedAvg's last model", "#6F7680", "x"),
}
OWN = {
    "separate-path": Look("separate chains, mean over rounds", "#E69F00", "v", "--"),
    "separate-own": Look("separate chains' predictors", "#009E73", "^"),
    "mc-own": Look("MC-PSGD's predictors", "#D55E00", "s"),
    "mm-own": Look("MM-PSGD's predictors", "#0072B2", "o"),
}


def rates(settings: Sequence[Setting], title: str) -> Figure:
    """Excess over F(x*) and over the blocks' own optima along T, N and M, log-log, with the bounds' slopes."""
    figure, panels = _grid(title, (f"excess over {BEST}", f"excess over {OWN_BEST}"))
    for column, variable in enumerate(VARIABLES):
        for row, (looks, in_blocks) in enumerate(((GLOBAL, 0.0), (OWN, 0.5))):
            axes: Axes = panels[row, column]
            _lines(axes, settings, variable, looks)
            _logarithmic(axes)
            _guide(axes, settings, variable, next(iter(looks)), {"T": -0.5, "N": -0.5, "M": in_blocks}[variable])
    _finish(figure, panels)
    return figure


def signs(settings: Sequence[Setting], title: str) -> Figure:
    """The same where blocks differ much: the excess over F(x*) falls below zero, so its axis is linear."""
    figure, panels = _grid(title, (f"excess over {BEST}, linear axis", f"excess over {OWN_BEST}"))
    for column, variable in enumerate(VARIABLES):
        upper: Axes = panels[0, column]
        _lines(upper, settings, variable, GLOBAL)
        upper.axhline(0.0, color=INK, linewidth=0.8)
        lower: Axes = panels[1, column]
        _lines(lower, settings, variable, OWN)
        _logarithmic(lower)
        _guide(lower, settings, variable, "separate-path", {"T": -0.5, "N": -0.5, "M": 0.5}[variable])
    _finish(figure, panels)
    return figure


def _grid(title: str, names: tuple[str, str]) -> tuple[Figure, np.ndarray[tuple[int, int], np.dtype[np.object_]]]:
    figure = blank(11.0, 7.2, title)
    panels = figure.subplots(2, 3, sharex="col", sharey="row", squeeze=False)
    for row, name in enumerate(names):
        panels[row, 0].set_ylabel(name, color=INK, fontsize=10)
    for column, variable in enumerate(VARIABLES):
        panels[1, column].set_xlabel(NAMES[variable], color=INK, fontsize=10)
    return figure, panels


def _lines(axes: Axes, settings: Sequence[Setting], variable: Variable, looks: Mapping[str, Look]) -> None:
    for key, look in looks.items():
        sizes, excess = series(settings, variable, key)
        means, lows, highs = np.array([mean_interval(column) for column in excess.T]).T
        axes.fill_between(sizes, lows, highs, color=look.color, alpha=0.15, linewidth=0)
        axes.plot(sizes, means, color=look.color, linestyle=look.dash, marker=look.mark, markersize=5, label=look.label)
    _dress(axes, sizes)


def _guide(axes: Axes, settings: Sequence[Setting], variable: Variable, key: str, slope: float) -> None:
    """Draw the bound's slope a little above the line of ``key``."""
    sizes, excess = series(settings, variable, key)
    means: Floats = excess.mean(axis=0)
    law = sizes**slope
    height = 1.25 * (means / law).max() * law
    axes.plot(sizes, height, color=INK, linestyle=":", linewidth=1.3)
    # Beside the middle of the line, on the side it leaves free.
    middle, name = len(sizes) // 2, "slope 0" if slope == 0.0 else f"slope {slope:+.1f}".replace("-", "−")
    side: Literal["left", "right"] = "right" if slope > 0.0 else "left"
    place = (sizes[middle], height[middle])
    axes.annotate(name, place, (0, 3), textcoords="offset points", ha=side, va="bottom", color=INK, fontsize=9)


def _dress(axes: Axes, sizes: Floats) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#aab0b8")
    axes.tick_params(which="both", colors=FAINT, labelsize=9, length=0)
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _short(value: float) -> str:
    return f"{value / 1024:.0f}k" if value >= 1024 else f"{value:.0f}"


def _finish(figure: Figure, panels: np.ndarray[tuple[int, int], np.dtype[np.object_]]) -> None:
    for row in range(2):
        axes: Axes = panels[row, 2]
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9, labelcolor=INK)
