"""Figures that compare runs. Every function returns a Figure of its own; nothing global is drawn on or changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from perennial.server.report.columns import FloatArray, IntArray, RunResult
from perennial.server.report.drawing import DASHES, FAINT, GRID, INK, Style, blank, dress, legend, line, plain
from perennial.server.report.marks import name_runs, shade
from perennial.server.report.quantities import separate_share_by_block, separate_share_in_windows
from perennial.server.report.scale import shared
from perennial.server.report.styles import styles
from perennial.server.report.table import shared_block_names, unit_of

WINDOWS, LEAST_WINDOW = 40, 10


def draw(runs: Sequence[RunResult]) -> dict[str, Figure]:
    """Every figure that the runs have something for, by file name without its ending, in reading order."""
    look = styles(runs)
    drawn: dict[str, Figure] = {}
    judged = [run for run in runs if len(run.evaluated)]
    if judged:
        drawn["accuracy"] = accuracy(judged, look)
        drawn["accuracy-per-block"] = accuracy_per_block(judged, look)
    if choosing := [run for run in runs if run.rounds.votes.any()]:
        drawn["chosen"] = chosen(choosing, look)
    if sent := [run for run in judged if run.rounds.bytes.any()]:
        drawn["bytes"] = bytes_to_accuracy(sent, look)
    if lossy := [run for run in runs if np.isfinite(run.rounds.train_loss_mixed).any()]:
        drawn["train-loss"] = train_loss(lossy, look)
    return drawn


def accuracy(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Mean accuracy over blocks at the evaluated rounds, one line a run."""
    scale = shared(run.scale for run in runs)
    figure, axes = _single(f"Mean {scale.name} over blocks", "round", scale.label)
    for run in runs:
        line(axes, run.evaluated.server_round, run.scale.factor * run.evaluated.mean_accuracy, look[run.name])
    shade(axes, runs, named=True)
    name_runs(figure, axes, runs, look)
    return figure


def accuracy_per_block(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Accuracy on each block's own test set, one panel a block; shaded while that block is trained."""
    names = shared_block_names(runs)
    columns = min(len(names), 3 if len(names) in (3, 5, 6, 9) else 4 if len(names) < 9 else 5)
    rows = math.ceil(len(names) / columns)
    height = 2.5 * rows + (0.9 if rows > 1 else 1.4)
    scale = shared(run.scale for run in runs)
    figure = blank(10.0 if columns > 2 else 9.0, height, f"{scale.name.capitalize()} on each block")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for block, axes in enumerate(panels.flat):
        if block >= len(names):
            axes.set_axis_off()
            continue
        dress(axes, ticks=4)
        axes.set_title(plain(names[block]), loc="left", color=INK, fontsize=10)
        for run in runs:
            if block < run.blocks:
                found, factor = run.evaluated, run.scale.factor
                line(axes, found.server_round, factor * found.accuracy[:, block], look[run.name], width=1.2)
        shade(axes, runs, only=block)
        # The panels below the last row's end are empty: the axis is read here.
        if block + columns >= len(names):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("round", color=FAINT, fontsize=9)
        if block % columns == 0:
            axes.set_ylabel(plain(scale.label), color=FAINT, fontsize=9)
    legend(figure, {run.name: look[run.name] for run in runs})
    return figure


def chosen(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Share of rounds won by the separate chain: over time in windows, and over each block's rounds."""
    names = shared_block_names(runs)
    figure = blank(10.0, max(3.9, 1.6 + 0.28 * len(names)), "Rounds won by the separate chain")
    over_time, by_block = figure.subplots(1, 2, width_ratios=(2.2, 1))
    window = max(LEAST_WINDOW, math.ceil(max(len(run.rounds) for run in runs) / WINDOWS))
    for run in runs:
        edges, shares = separate_share_in_windows(run.rounds, window)
        line(over_time, (edges[:-1] + edges[1:]) / 2, 100 * shares, look[run.name])
    dress(over_time, "round", f"share of rounds, %, in windows of {window}")
    over_time.set_ylim(-4, 104)
    shade(over_time, runs)
    dress(by_block, "share of the block's rounds, %", "")
    by_block.grid(True, axis="x", color=GRID, linewidth=0.8)
    for place, run in enumerate(runs):
        shares = separate_share_by_block(run.rounds, run.blocks)
        # Dots of several runs lie beside each other within the block's row.
        rows = np.arange(len(shares)) + (place - (len(runs) - 1) / 2) * min(0.18, 0.7 / len(runs))
        by_block.plot(100 * shares, rows, "o", color=look[run.name].color, markersize=6 if len(runs) < 5 else 4)
    by_block.set_yticks(range(len(names)), labels=[plain(name) for name in names])
    by_block.set(xlim=(-4, 104), ylim=(len(names) - 0.5, -0.5))
    legend(figure, {run.name: look[run.name] for run in runs})
    return figure


def bytes_to_accuracy(runs: Sequence[RunResult], look: Mapping[str, Style]) -> Figure:
    """Mean accuracy against the bytes sent down and up until then."""
    size, unit = unit_of(max(int(run.rounds.bytes.sum()) for run in runs))
    scale = shared(run.scale for run in runs)
    figure, axes = _single(f"{scale.name.capitalize()} for bytes sent", f"{unit} sent, down and up", scale.label)
    for run in runs:
        line(axes, run.evaluated.bytes / size, run.scale.factor * run.evaluated.mean_accuracy, look[run.name])
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
    shade(axes, runs, named=True)
    legend(figure, shown)
    return figure


def _single(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    figure = blank(10.0, 4.8, plain(title))
    axes = figure.subplots()
    dress(axes, across, plain(up))
    return figure, axes


def _together(names: Sequence[str], of: int) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"all {of} runs" if len(names) == of else f"{names[0]} and {len(names) - 1} more"


def _windowed(rounds: IntArray, loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means over windows of rounds, at most 250 of them, so that a line shows the course and not the noise."""
    kept = np.isfinite(loss)
    rounds, loss = rounds[kept], loss[kept]
    parts = math.ceil(len(loss) / math.ceil(len(loss) / 250))
    starts = np.arange(parts) * math.ceil(len(loss) / 250)
    sizes = np.diff([*starts, len(loss)])
    return np.add.reduceat(rounds.astype(np.float64), starts) / sizes, np.add.reduceat(loss, starts) / sizes
