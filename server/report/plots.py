"""Figures that compare runs. Every function returns a Figure of its own; nothing global is drawn on or changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from perennial.server.report.drawing import (
    DASHES,
    FAINT,
    GRID,
    INK,
    KNOWN,
    PALETTE,
    TINT,
    Style,
    blank,
    dress,
    legend,
    line,
    plain,
)
from perennial.server.report.quantities import FloatArray, RunResult, Visit, compare
from perennial.server.report.table import percent, shared_block_names, unit_of

MOST_VISITS_SHADED = 60
MOST_NAMED_AT_LINES = 6
LONGEST_NAME_AT_LINES = 26
WINDOWS, LEAST_WINDOW = 40, 10


def styles(runs: Sequence[RunResult]) -> dict[str, Style]:
    """A style for every run's name.

    Where one number differs: ordered shades. Where strategies differ and more: a colour a strategy, shades within it.
    Else a colour a run, the strategies' own where a run is named as one; when colours run out, again in dashes.
    """
    differing = compare(runs).differing
    names = [run.name for run in runs]
    if len(differing) == 1 and len(runs) > 2 and all(_is_number(value) for value in next(iter(differing.values()))):
        values = np.array(next(iter(differing.values())), dtype=np.float64)
        # viridis rises evenly in lightness for every kind of colour vision; its yellow end is too pale on white.
        shades = matplotlib.colormaps["viridis"](0.82 * np.argsort(np.argsort(values)) / (len(runs) - 1))
        return {name: Style(to_hex(shade)) for name, shade in zip(names, shades, strict=True)}
    if "strategy" in differing and len(differing) > 1:
        families: dict[str, list[str]] = {}
        for run in runs:
            families.setdefault(str(run.config.get("strategy")), []).append(run.name)
        bases = _distinct(list(families))
        return {
            name: style for key, members in families.items() for name, style in _shades(members, bases[key]).items()
        }
    return _distinct(names)


def _distinct(names: Sequence[str]) -> dict[str, Style]:
    known = {name: Style(KNOWN[name]) for name in names if name in KNOWN}
    taken = {style.color for style in known.values()}
    free = [Style(color, dash) for dash in DASHES for color in PALETTE if dash != "-" or color not in taken]
    others = [name for name in names if name not in known]
    return known | {name: free[place % len(free)] for place, name in enumerate(others)}


def _shades(names: Sequence[str], base: Style) -> dict[str, Style]:
    """From a lighter to a darker shade of `base`, in order."""
    if len(names) == 1:
        return {names[0]: base}
    color = np.array(to_rgb(base.color))
    mixes = np.linspace(-0.5, 0.45, len(names))
    mixed = [color * (1 - abs(mix)) + (abs(mix) if mix < 0 else 0.0) for mix in mixes]
    return {name: Style(to_hex(shade), base.dash) for name, shade in zip(names, mixed, strict=True)}


def draw(runs: Sequence[RunResult]) -> dict[str, Figure]:
    """Every figure that the runs have something for, by file name without its ending, in reading order."""
    look = styles(runs)
    drawn: dict[str, Figure] = {}
    judged = [run for run in runs if len(run.evaluated)]
    if judged:
        drawn["accuracy"] = accuracy(judged, look)
        drawn["accuracy-per-block"] = accuracy_per_block(judged, look)
    if choosing := [run for run in runs if run.has_choice]:
        drawn["chosen"] = chosen(choosing, look)
    if sent := [run for run in judged if run.cumulative_bytes[-1] > 0]:
        drawn["bytes"] = bytes_to_accuracy(sent, look)
    if lossy := [run for run in runs if np.isfinite(run.rounds.train_loss_mixed).any()]:
        drawn["train-loss"] = train_loss(lossy, look)
    return drawn


def accuracy(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Mean accuracy over blocks at the evaluated rounds, one line a run."""
    figure, axes = _single("Mean accuracy over blocks", "round", "accuracy, %")
    for run in runs:
        line(axes, run.accuracy_rounds, 100 * run.mean_accuracy, look[run.name])
    _shade(axes, runs, named=True)
    _name_runs(figure, axes, runs, look)
    return figure


def accuracy_per_block(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Accuracy on each block's own test set, one panel a block; shaded while that block is trained."""
    names = shared_block_names(runs)
    columns = min(len(names), 3 if len(names) in (3, 5, 6, 9) else 4 if len(names) < 9 else 5)
    rows = math.ceil(len(names) / columns)
    figure = blank(10.0 if columns > 2 else 9.0, 2.5 * rows + (0.9 if rows > 1 else 1.4))
    figure.suptitle("Accuracy on each block", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for block, axes in enumerate(panels.flat):
        if block >= len(names):
            axes.set_axis_off()
            continue
        dress(axes, ticks=4)
        axes.set_title(plain(names[block]), loc="left", color=INK, fontsize=10)
        for run in runs:
            if block < run.blocks:
                line(axes, run.accuracy_rounds, 100 * run.block_accuracy[:, block], look[run.name], width=1.2)
        _shade(axes, runs, only=block)
        # The panels below the last row's end are empty: the axis is read here.
        if block + columns >= len(names):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("round", color=FAINT, fontsize=9)
        if block % columns == 0:
            axes.set_ylabel("accuracy, %", color=FAINT, fontsize=9)
    legend(figure, {run.name: look[run.name] for run in runs})
    return figure


def chosen(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Share of rounds won by the separate chain: over time in windows, and over each block's rounds."""
    names = shared_block_names(runs)
    figure = blank(10.0, max(3.9, 1.6 + 0.28 * len(names)))
    figure.suptitle("Rounds won by the separate chain", x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    over_time, by_block = figure.subplots(1, 2, width_ratios=(2.2, 1))
    window = max(LEAST_WINDOW, math.ceil(max(len(run.rounds) for run in runs) / WINDOWS))
    for run in runs:
        edges, shares = run.separate_share(window)
        line(over_time, (edges[:-1] + edges[1:]) / 2, 100 * shares, look[run.name])
    dress(over_time, "round", f"share of rounds, %, in windows of {window}")
    over_time.set_ylim(-4, 104)
    _shade(over_time, runs)
    dress(by_block, "share of the block's rounds, %", "")
    by_block.grid(True, axis="x", color=GRID, linewidth=0.8)
    for place, run in enumerate(runs):
        shares = run.separate_share_by_block
        # Dots of several runs lie beside each other within the block's row.
        rows = np.arange(len(shares)) + (place - (len(runs) - 1) / 2) * min(0.18, 0.7 / len(runs))
        by_block.plot(100 * shares, rows, "o", color=look[run.name].color, markersize=6 if len(runs) < 5 else 4)
    by_block.set_yticks(range(len(names)), labels=[plain(name) for name in names])
    by_block.set(xlim=(-4, 104), ylim=(len(names) - 0.5, -0.5))
    legend(figure, {run.name: look[run.name] for run in runs})
    return figure


def bytes_to_accuracy(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Mean accuracy against the bytes sent down and up until then."""
    size, unit = unit_of(max(int(run.cumulative_bytes[-1]) for run in runs))
    figure, axes = _single("Accuracy for bytes sent", f"{unit} sent, down and up", "accuracy, %")
    for run in runs:
        line(axes, run.cumulative_bytes[run.evaluated] / size, 100 * run.mean_accuracy, look[run.name])
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    legend(figure, {run.name: look[run.name] for run in runs})
    return figure


def train_loss(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Training loss in windows, a line a run and chain; chains that are the same to the last bit are drawn once."""
    chains: dict[bytes, tuple[RunResult, FloatArray, str, list[str]]] = {}
    for run in runs:
        for chain, loss in (("mixed", run.rounds.train_loss_mixed), ("separate", run.rounds.train_loss_separate)):
            if np.isfinite(loss).any():
                chains.setdefault(loss.tobytes(), (run, loss, chain, []))[3].append(run.name)
    figure, axes = _single("Training loss", "round", "loss")
    shown: dict[str, Style] = {}
    several = any(chain == "separate" for _, _, chain, _ in chains.values())
    for run, loss, chain, names in chains.values():
        style = look[names[0]] if len(names) == 1 else Style(INK)
        style = Style(style.color, DASHES[1]) if chain == "separate" else style
        line(axes, *_windowed(run.rounds.server_round, loss), style)
        shown[_together(names, len(runs)) + (f": {chain} chain" if several else "")] = style
    _shade(axes, runs, named=True)
    legend(figure, shown)
    return figure


def _single(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    figure = blank(10.0, 4.8)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    axes = figure.subplots()
    dress(axes, across, up)
    return figure, axes


def _shade(axes: Axes, runs: Sequence[RunResult], only: int | None = None, named: bool = False) -> None:
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


def _name_runs(figure: Figure, axes: Axes, runs: Sequence[RunResult], look: Mapping[str, Style]) -> None:
    """Write each run's name and last value at its line's end, if they fit and the lines end together; else a legend."""
    last = [int(run.accuracy_rounds[-1]) for run in runs]
    low, high = axes.get_xlim()
    together = max(last) - min(last) <= 0.02 * (high - low)
    if not together or len(runs) > MOST_NAMED_AT_LINES or max(len(run.name) for run in runs) > LONGEST_NAME_AT_LINES:
        legend(figure, {run.name: look[run.name] for run in runs})
        return
    bottom, top = axes.get_ylim()
    heights = [(100 * float(run.mean_accuracy[-1]) - bottom) / (top - bottom) for run in runs]
    for run, x, place in zip(runs, last, _apart(heights, gap=0.05), strict=True):
        color = look[run.name].color
        axes.annotate(
            plain(f"{run.name}  {percent(run.final)} %"),
            xy=(x, 100 * float(run.mean_accuracy[-1])),
            xytext=(1.03, place),
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


def _apart(heights: Sequence[float], gap: float) -> list[float]:
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


def _together(names: Sequence[str], of: int) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"all {of} runs" if len(names) == of else f"{names[0]} and {len(names) - 1} more"


def _windowed(rounds: NDArray[np.int64], loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means over windows of rounds, at most 250 of them, so that a line shows the course and not the noise."""
    kept = np.isfinite(loss)
    rounds, loss = rounds[kept], loss[kept]
    parts = math.ceil(len(loss) / math.ceil(len(loss) / 250))
    starts = np.arange(parts) * math.ceil(len(loss) / 250)
    sizes = np.diff([*starts, len(loss)])
    return np.add.reduceat(rounds.astype(np.float64), starts) / sizes, np.add.reduceat(loss, starts) / sizes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
