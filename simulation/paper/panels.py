"""What the figures of the results page are drawn with: panels side by side, curves with bands, legends below."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from perennial.server.report.drawing import (
    DASHES,
    FAINT,
    INK,
    KNOWN,
    PALETTE,
    Style,
    blank,
    dress,
    graded,
    legend,
)
from perennial.simulation.paper import summary
from perennial.simulation.paper.claims import FEDAVG, LABELS
from perennial.simulation.paper.series import Series

STYLES = {
    "fedavg": Style(KNOWN["fedavg"]),
    "fedavg-shuffled": Style("#222222", DASHES[1]),
    "mm-psgd": Style(KNOWN["mm-psgd"]),
    "mc-psgd": Style(KNOWN["mc-psgd"], DASHES[1]),
    "separate-alone": Style("#CC79A7"),
    "mm-snapshot": Style("#009E73", DASHES[2]),
    "mm-decay-0.9": Style("#E69F00", DASHES[1]),
    "mm-mean": Style("#56B4E9"),
    "fedavg-told": Style("#009E73"),
    "mm-psgd-told": Style("#E69F00", DASHES[1]),
    "fedavgm": Style(PALETTE[6]),
    "fedadam": Style(PALETTE[7]),
    "fedrep": Style(PALETTE[2]),
    "ifca": Style(PALETTE[5], DASHES[3]),
}


def curve(axes: Axes, series: Sequence[Series], style: Style) -> None:
    """Draw the mean accuracy of a run's seeds; a band spans them."""
    found = summary.curve(series)
    axes.plot(found.rounds, 100 * found.mean, color=style.color, linestyle=style.dash, linewidth=1.4)
    if len(series) > 1:
        axes.fill_between(found.rounds, 100 * found.low, 100 * found.high, color=style.color, alpha=0.2, linewidth=0)


def panels(
    titles: Sequence[str], across: str = "round", up: str = "accuracy, %", height: float = 4.4
) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels side by side that share their vertical axis, each with its title."""
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


def by_strategy(series: Sequence[Series], strategies: Sequence[str], label: str) -> Figure:
    """A panel for each strategy, a shade for each setting; shuffled FedAvg, without blocks, is dashed in FedAvg's."""
    figure, made = panels([LABELS[name] for name in strategies], height=4.2)
    looks = shades({one.setting for one in series})
    shown = {label.format(float(setting)): style for setting, style in looks.items()}
    for axes, strategy in zip(made, strategies, strict=True):
        for one in series:
            if one.strategy == strategy:
                curve(axes, [one], STYLES["fedavg-shuffled"] if one.shuffled else looks[one.setting])
    from_zero(made)
    if any(one.shuffled and one.strategy in strategies for one in series):
        shown["shuffled"] = STYLES["fedavg-shuffled"]
    legend(figure, shown)
    return figure


def shades(settings: Collection[str]) -> dict[str, Style]:
    """A shade for each value of a setting, from least to most."""
    return dict(zip(sorted(settings, key=float), graded(len(settings)), strict=True))


def from_learned(axes: Axes) -> None:
    """Leave out the first rounds' climb, so that a few points at the top can be told apart."""
    axes.set_ylim(bottom=max(axes.get_ylim()[0], min(40.0, axes.get_ylim()[1] - 10.0)))


def claimed(axes: Axes, blocks: int) -> None:
    """Show the range of the paper's FedAvg; a line, if the paper gives one number."""
    least, most = FEDAVG[blocks]
    axes.axhspan(least, most, color=KNOWN["fedavg"], alpha=0.12, linewidth=0)
    for height in {least, most}:
        axes.axhline(height, color=FAINT, linewidth=0.7, linestyle=DASHES[2])


def draw_runs(figure: Figure, axes: Axes, series: Sequence[Series], names: Sequence[str]) -> None:
    """Draw the runs that are there of ``names``, and a legend of them."""
    shown = [name for name in names if summary.of_run(series, name)]
    for name in shown:
        curve(axes, summary.of_run(series, name), STYLES[name])
    from_zero([axes])
    legend(figure, {LABELS[name]: STYLES[name] for name in shown})
