"""What the figures of the results page are drawn with: panels side by side, curves with bands, legends below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perennial.server.report.drawing import INK, Style, blank, dress
from perennial.server.report.quantities import FloatArray
from perennial.simulation.paper import summary
from perennial.simulation.paper.series import Series


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
    figure = blank(10.0, height)
    made = list(figure.subplots(1, len(titles), sharey=True, squeeze=False).flat)
    for place, (axes, title) in enumerate(zip(made, titles, strict=True)):
        axes.set_title(title, loc="left", color=INK, fontsize=11, fontweight="bold")
        dress(axes, across, up if place == 0 else "", ticks=5 if len(titles) > 1 else 8)
        axes.xaxis.set_major_formatter("{x:,g}")
    return figure, made


def from_zero(axes: Iterable[Axes]) -> None:
    """Let the axes begin at 0; only once everything is drawn, since a limit that is set is kept."""
    for one in axes:
        one.set_xlim(left=0)
