"""What the figures of the results page are drawn with: panels side by side, curves with bands, legends below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from simulation.paper import summary
from simulation.paper.series import Series
from simulation.plots import FAINT, GRID, INK, Style
from simulation.results import FloatArray


def curve(
    axes: Axes, series: Sequence[Series], style: Style, value: Callable[[Series], FloatArray] = lambda one: one.mean
) -> None:
    found = summary.curve(series, value)
    axes.plot(found.rounds, 100 * found.mean, color=style.color, linestyle=style.dash, linewidth=1.4)
    if len(series) > 1:
        axes.fill_between(found.rounds, 100 * found.low, 100 * found.high, color=style.color, alpha=0.2, linewidth=0)


def panels(
    titles: Sequence[str], across: str = "round", up: str = "accuracy, %", height: float = 4.4
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10.0, height), layout=ConstrainedLayoutEngine(wspace=0.05), facecolor="white")
    FigureCanvasAgg(figure)
    made = list(figure.subplots(1, len(titles), sharey=True, squeeze=False).flat)
    for place, (axes, title) in enumerate(zip(made, titles, strict=True)):
        axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color("#aab0b8")
        axes.tick_params(colors=FAINT, labelsize=9, length=0)
        axes.grid(True, axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5 if len(titles) > 1 else 8, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10]))
        axes.set_xlabel(across, color=FAINT, fontsize=9)
        axes.set_ylabel(up if place == 0 else "", color=FAINT, fontsize=9)
        axes.margins(x=0.0, y=0.05)
        axes.xaxis.set_major_formatter("{x:,g}")
    return figure, made


def from_zero(axes: Iterable[Axes]) -> None:
    """Let the axes begin at 0; only once everything is drawn, since a limit that is set is kept."""
    for one in axes:
        one.set_xlim(left=0)


def legend(figure: Figure, looks: Mapping[str, Style]) -> None:
    lines = [Line2D([], [], color=style.color, linestyle=style.dash, linewidth=2) for style in looks.values()]
    columns = max(1, min(len(looks), 5, 110 // (max(len(name) for name in looks) + 6)))
    figure.legend(
        lines,
        list(looks),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=2.4,
    )
