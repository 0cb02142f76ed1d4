"""The figures of the results page, drawn from series alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from perennial.server.report.drawing import DASHES, FAINT, INK, KNOWN, Style, legend
from perennial.server.report.quantities import last_cycle, separate_share_at
from perennial.simulation.paper import summary
from perennial.simulation.paper.claims import FIGURE2, LABELS, LOCAL_ITERATIONS, TABLE1, TOLD
from perennial.simulation.paper.panels import (
    STYLES,
    by_strategy,
    claimed,
    curve,
    draw_runs,
    from_learned,
    from_zero,
    panels,
    shades,
)
from perennial.simulation.paper.series import Series
from perennial.simulation.paper.tables import Found

_OF_FIGURE2 = ("figure2", "ablations", "votes", "forgetting", "communication")


def draw(found: Found) -> dict[str, Figure]:
    """Return every figure that there is something for, by file name without its ending."""
    drawn: dict[str, Callable[[Found], Figure]] = {
        "figure2": figure2, "figure2-nine-labels": figure2_nine_labels, "ablations": ablations, "votes": votes,
        "forgetting": forgetting, "communication": communication, "figure3": figure3, "figure4": figure4,
        "figure5": figure5, "contradiction": contradiction, "calibration-blocks": calibration_blocks,
        "calibration-labels": calibration_labels, "sensitivity": sensitivity, "neighbours": neighbours,
    }  # fmt: skip
    needs: dict[str, tuple[str, ...]] = dict.fromkeys(_OF_FIGURE2, ("figure2",))
    needs["sensitivity"] = ("sensitivity-labels", "sensitivity-skew")
    return {name: make(found) for name, make in drawn.items() if all(found[one] for one in needs.get(name, (name,)))}


def figure2(found: Found) -> Figure:
    return _figure2([*found["figure2"], *found["figure2-told"]], "Mean accuracy over blocks; bands span the seeds")


def figure2_nine_labels(found: Found) -> Figure:
    return _figure2(found["figure2-nine-labels"], "Mean accuracy over blocks of 9 labels and no other")


def _figure2(series: Sequence[Series], title: str) -> Figure:
    """Mean accuracy over rounds of the runs of figure 2."""
    figure, (axes,) = panels([title])
    draw_runs(figure, axes, series, (*FIGURE2, "mm-mean", *TOLD))
    claimed(axes, 5)
    for height in (62.0, 65.0):
        axes.axhline(height, color=FAINT, linewidth=0.7, linestyle=DASHES[2])
    for height, text in ((65, "paper's best, MM and MC"), (62, "paper's best, shuffled"), (57.5, "paper's FedAvg")):
        axes.annotate(text, (1.01, height), xycoords=("axes fraction", "data"), color=FAINT, fontsize=8, va="center")
    from_learned(axes)
    return figure


def ablations(found: Found) -> Figure:
    """How a predictor is made, on the same chains."""
    figure, (axes,) = panels(["What a predictor is made of"])
    names = ("mm-psgd", "mm-snapshot", "mm-decay-0.9", "mc-psgd", "mm-mean", "separate-alone")
    draw_runs(figure, axes, found["figure2"], names)
    from_learned(axes)
    return figure


def votes(found: Found) -> Figure:
    """Share of rounds won by the separate chain, between evaluations."""
    figure, (axes,) = panels(["Rounds of MC-PSGD won by the separate chain"], up="share of rounds, %", height=3.4)
    series = summary.of_run(found["figure2"], "mc-psgd")
    if series:
        shares = summary.curve(series, separate_share_at)
        axes.fill_between(shares.rounds, 100 * shares.mean, step="pre", color=KNOWN["mc-psgd"], linewidth=0)
    from_zero([axes])
    # Where it hardly ever wins the axis ends early, but not so early that chance looks large.
    axes.set_ylim(0, max(10.0, 1.1 * axes.get_ylim()[1]))
    return figure


def forgetting(found: Found) -> Figure:
    """What FedAvg's accuracy on a block loses after the block's last round; a band spans blocks, cycles and seeds."""
    figure, (axes,) = panels(
        ["What FedAvg forgets"], across="rounds since the block was last trained", up="change of accuracy, points"
    )
    lost: dict[int, list[float]] = {}
    for one in summary.of_run(found["figure2"], "fedavg"):
        for since, changes in summary.forgotten(one).items():
            lost.setdefault(since, []).extend(changes)
    when = [0, *sorted(lost)]
    means, low, high = (
        [0.0, *(100 * float(take(lost[since])) for since in when[1:])] for take in (np.mean, np.min, np.max)
    )
    axes.fill_between(when, low, high, color=KNOWN["fedavg"], alpha=0.18, linewidth=0)
    axes.plot(when, means, color=INK, marker="o", markersize=3.5, linewidth=1.6)
    axes.axhline(0, color=KNOWN["mm-psgd"], linewidth=1.6)
    legend(figure, {"FedAvg's one model": Style(INK), "a predictor, kept while others train": STYLES["mm-psgd"]})
    return figure


def communication(found: Found) -> Figure:
    """Accuracy against gigabytes sent down and up, until MM-PSGD's run is over; of each run its first seed."""
    figure, (axes,) = panels(["Accuracy for bytes sent, first seed"], across="GB sent, down and up")
    names = ("fedavg", "fedavg-shuffled", "mm-psgd", "mc-psgd")
    shown = {name: series for name in names if (series := summary.of_run(found["figure2"], name))}
    for name, series in shown.items():
        style = STYLES[name]
        first = series[0].evaluated
        axes.plot(first.bytes / 1e9, 100 * first.mean_accuracy, color=style.color, linestyle=style.dash, lw=1.4)
    from_zero([axes])
    if (right := min(int(series[0].evaluated.bytes[-1]) for series in shown.values())) > 0:
        axes.set_xlim(right=right / 1e9)
    legend(figure, {LABELS[name]: STYLES[name] for name in shown})
    return figure


def figure3(found: Found) -> Figure:
    """Accuracy by I; crosses where the paper first measured 60 %."""
    figure = by_strategy(found["figure3"], ("mm-psgd", "mc-psgd"), "I = {:g}")
    looks = shades({one.setting for one in found["figure3"]})
    for axes, claims in zip(figure.axes, TABLE1.values(), strict=True):
        axes.axhline(60, color=FAINT, linewidth=0.8, linestyle=DASHES[2])
        for iterations, server_round in zip(LOCAL_ITERATIONS, claims, strict=True):
            if iterations in looks:
                axes.plot(server_round, 60, "X", color=looks[iterations].color, markersize=8, markeredgecolor="white")
        axes.annotate(
            "X: paper", (0.99, 59), xycoords=("axes fraction", "data"), color=FAINT, fontsize=8, ha="right", va="top"
        )
    return figure


def figure4(found: Found) -> Figure:
    return by_strategy(found["figure4"], ("fedavg", "mm-psgd", "mc-psgd"), "M = {:g}")


def figure5(found: Found) -> Figure:
    return by_strategy(found["figure5"], ("fedavg", "mm-psgd", "mc-psgd"), "participation {:.0%}")


def contradiction(found: Found) -> Figure:
    return by_strategy(found["contradiction"], ("fedavg", "mm-psgd", "mc-psgd"), "E = {:g}")


def calibration_blocks(found: Found) -> Figure:
    return _calibration(found["calibration-blocks"], "block skew {:g}")


def calibration_labels(found: Found) -> Figure:
    return _calibration(found["calibration-labels"], "{:g} of 10 labels a block")


def _calibration(found: Sequence[Series], label: str) -> Figure:
    """FedAvg by a setting, a panel for each M; the paper's range is shaded, or its best a line."""
    series = [one for one in found if one.strategy == "fedavg" and not one.shuffled]
    blocks = sorted({one.blocks for one in series})
    figure, made = panels([f"FedAvg, M = {count}" for count in blocks], height=4.2)
    looks = shades({one.setting for one in series})
    for axes, count in zip(made, blocks, strict=True):
        for one in series:
            if one.blocks == count:
                curve(axes, [one], looks[one.setting])
        claimed(axes, count)
    from_zero(made)
    shown = {label.format(float(setting)): style for setting, style in looks.items()}
    legend(figure, {**shown, "the paper's": Style(FAINT, DASHES[2])})
    return figure


def sensitivity(found: Found) -> Figure:
    """The last cycle's mean accuracy against what the paper leaves open; bars span FedAvg's wobble."""
    figure, made = panels(["Labels per block", "Client skew"], across="", up="last cycle's accuracy, %")
    for axes, across in zip(made, ("labels per block", "client skew"), strict=True):
        axes.set_xlabel(across)
    names = ("fedavg", "mm-psgd", "mc-psgd")
    for axes, key in zip(made, ("sensitivity-labels", "sensitivity-skew"), strict=True):
        for name in names:
            swept = sorted((one for one in found[key] if one.strategy == name), key=lambda one: float(one.setting))
            wobbles = [last_cycle(one.evaluated) for one in swept]
            x, style = [float(one.setting) for one in swept], STYLES[name]
            mean, least, most = (
                100 * np.array([getattr(one, part) for one in wobbles]) for part in ("mean", "least", "most")
            )
            axes.plot(x, mean, color=style.color, linestyle=style.dash, marker="o", markersize=4.5, linewidth=1.6)
            if name == "fedavg":
                axes.vlines(x, least, most, color=style.color, linewidth=4, alpha=0.35)
        axes.xaxis.set_major_locator(FixedLocator(sorted({float(one.setting) for one in found[key]})))
        axes.margins(x=0.06)
    legend(figure, {f"{LABELS[name]}{' (bars: least to most)' * (name == 'fedavg')}": STYLES[name] for name in names})
    return figure


def neighbours(found: Found) -> Figure:
    """All strategies over rounds, each as it did best in the end, a panel for each overlap of the blocks."""
    settings = sorted({one.setting for one in found["neighbours"]}, key=int, reverse=True)
    figure, made = panels([f"{setting} of 10 labels a block" for setting in settings], height=4.6)
    names = [name for name in LABELS if any(one.strategy == name for one in found["neighbours"])]
    for axes, setting in zip(made, settings, strict=True):
        for name in names:
            series = [one for one in found["neighbours"] if (one.strategy, one.setting) == (name, setting)]
            if series:
                curve(axes, [max(series, key=lambda one: last_cycle(one.evaluated).mean)], STYLES[name])
    from_zero(made)
    legend(figure, {LABELS[name]: STYLES[name] for name in names})
    return figure
