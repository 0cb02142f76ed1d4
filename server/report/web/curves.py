"""The charts of some runs: what figures/*.png show too, drawn so that a browser can draw them again at any moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from perennial.server.report.columns import FloatArray, IntArray, RunResult
from perennial.server.report.palette import DASHES, Style, of_block
from perennial.server.report.quantities import separate_share_in_windows
from perennial.server.report.scale import Scale, shared
from perennial.server.report.table import amount, shared_block_names, unit_of
from perennial.server.report.web.chart import Band, Chart, ChartLine

WINDOWS, LEAST_WINDOW = 40, 10
MOST_BANDS, MOST_NAMED, MOST_STRIPS = 60, 12, 200


def scores(runs: Sequence[RunResult], look: Mapping[str, Style]) -> list[Chart]:
    """The score over time: of each block, if there is one run; else the runs' means, and a chart for each block."""
    judged = [run for run in runs if len(run.evaluated)]
    if not judged:
        return []
    scale = shared(run.scale for run in judged)
    bands = cycles(judged)
    if len(runs) == 1:
        run = judged[0]
        blocks = [
            ChartLine(
                name, run.evaluated.server_round, scale.factor * run.evaluated.accuracy[:, block], of_block(block)
            )
            for block, name in enumerate(run.block_names)
        ]
        mean = ChartLine("mean over blocks", run.evaluated.server_round, scale.factor * run.evaluated.mean_accuracy,
                     Style("ink", DASHES[1]))  # fmt: skip
        title = f"{scale.name.capitalize()} of each block"
        return [_of_score("score", title, [*blocks, mean], scale, [*bands, *_strips(run)])]
    means = [
        ChartLine(run.name, run.evaluated.server_round, scale.factor * run.evaluated.mean_accuracy, look[run.name])
        for run in judged
    ]
    return [_of_score("score", f"Mean {scale.name} over blocks", means, scale, bands)]


def panels(runs: Sequence[RunResult], look: Mapping[str, Style]) -> list[Chart]:
    """A small chart for each block where several runs are compared, all with the same limits."""
    judged = [run for run in runs if len(run.evaluated)]
    if len(runs) == 1 or not judged:
        return []
    scale = shared(run.scale for run in judged)
    drawn = np.concatenate([scale.factor * run.evaluated.accuracy.ravel() for run in judged])
    finite = drawn[np.isfinite(drawn)]
    limits = _limits(float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    found = []
    for block, name in enumerate(shared_block_names(judged)):
        lines = [
            ChartLine(
                run.name, run.evaluated.server_round, scale.factor * run.evaluated.accuracy[:, block], look[run.name]
            )
            for run in judged
            if block < run.blocks
        ]
        bands = [band for run in judged[:1] for band in _visits_of(run, block)]
        found.append(_of_score(f"score-{block}", name, lines, scale, bands, limits=limits, small=True))
    return found


def chosen(runs: Sequence[RunResult], look: Mapping[str, Style]) -> list[Chart]:
    """The share of rounds that the separate chain won, in windows."""
    choosing = [run for run in runs if run.rounds.votes.any()]
    if not choosing:
        return []
    window = max(LEAST_WINDOW, math.ceil(max(len(run.rounds) for run in choosing) / WINDOWS))
    lines = []
    for run in choosing:
        edges, shares = separate_share_in_windows(run.rounds, window)
        lines.append(ChartLine(run.name, (edges[:-1] + edges[1:]) / 2, 100 * shares, look[run.name]))
    up = f"% of rounds, in windows of {window}"
    return [Chart("chosen", "Rounds won by the separate chain", "round", up, lines, cycles(choosing), (0, 100),
                  write="{:.0f} %".format)]  # fmt: skip


def losses(runs: Sequence[RunResult], look: Mapping[str, Style]) -> list[Chart]:
    """The training loss of each chain; chains that are the same to the last bit are drawn once."""
    found: dict[bytes, tuple[RunResult, FloatArray, str, list[str]]] = {}
    for run in runs:
        for chain, loss in (("mixed", run.rounds.train_loss_mixed), ("separate", run.rounds.train_loss_separate)):
            if np.isfinite(loss).any():
                found.setdefault(loss.tobytes(), (run, loss, chain, []))[3].append(run.name)
    lines = []
    for run, loss, chain, names in found.values():
        color = look[names[0]].color if len(names) == 1 and len(runs) > 1 else "ink"
        title = f"{chain} chain" if len(runs) == 1 else f"{_together(names, len(runs))}: {chain} chain"
        dash = DASHES[1] if chain == "separate" else DASHES[0]
        lines.append(ChartLine(title, *windowed(run.rounds.server_round, loss), Style(color, dash)))
    return [Chart("loss", "Training loss", "round", "loss", lines, cycles(runs))] if lines else []


def costs(runs: Sequence[RunResult], look: Mapping[str, Style]) -> list[Chart]:
    """The mean score against everything that was sent until then."""
    sent = [run for run in runs if len(run.evaluated) and run.rounds.bytes.any()]
    if not sent:
        return []
    size, unit = unit_of(max(int(run.rounds.bytes.sum()) for run in sent))
    scale = shared(run.scale for run in sent)
    lines = [
        ChartLine(run.name, run.evaluated.bytes / size, scale.factor * run.evaluated.mean_accuracy, look[run.name])
        for run in sent
    ]
    return [_of_score("bytes", f"{scale.name.capitalize()} for bytes sent", lines, scale, (), f"{unit} down and up")]


def fleet(run: RunResult) -> list[Chart]:
    """Clients asked, answered and rejected, as means over windows of rounds."""
    rounds = run.rounds
    kinds = {
        "asked": (rounds.clients_asked, Style("ink", DASHES[1])),
        "answered": (rounds.clients_answered, of_block(2)),
        "rejected": (rounds.clients_rejected, of_block(1)),
    }
    if not rounds.clients_asked.any():
        return []
    lines = [
        ChartLine(name, *windowed(rounds.server_round, count.astype(np.float64)), style)
        for name, (count, style) in kinds.items()
    ]
    top = float(max(rounds.clients_asked.max(), 1)) * 1.06
    return [Chart("clients", "Clients of a round", "round", "clients", lines, cycles([run]), (0.0, top), write=amount)]


def cycles(runs: Sequence[RunResult]) -> list[Band]:
    """Every second cycle shaded, with its number where there is room; of the run that is furthest."""
    run = max(runs, key=lambda one: len(one.rounds))
    if not len(run.rounds):
        return []
    leaves = np.flatnonzero(np.diff(run.rounds.cycle)) + 1
    starts, ends = [0, *leaves.tolist()], [*(leaves - 1).tolist(), len(run.rounds) - 1]
    if len(starts) > MOST_BANDS:
        return []
    named = len(starts) <= MOST_NAMED
    rounds, cycle = run.rounds.server_round, run.rounds.cycle
    return [
        # A round takes the space from the round before to itself.
        Band(int(rounds[a]) - 1, int(rounds[b]), f"cycle {int(cycle[a]) + 1}" if named else "", tinted=place % 2 == 0)
        for place, (a, b) in enumerate(zip(starts, ends, strict=True))
    ]


def windowed(rounds: IntArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means over windows of rounds, at most 250 of them, so that a line shows the course and not the noise."""
    kept = np.isfinite(values)
    rounds, values = rounds[kept], values[kept]
    parts = math.ceil(len(values) / math.ceil(len(values) / 250))
    starts = np.arange(parts) * math.ceil(len(values) / 250)
    sizes = np.diff([*starts, len(values)])
    return np.add.reduceat(rounds.astype(np.float64), starts) / sizes, np.add.reduceat(values, starts) / sizes


def _of_score(
    ident: str,
    title: str,
    lines: Sequence[ChartLine],
    scale: Scale,
    bands: Sequence[Band] = (),
    across: str = "round",
    *,
    limits: tuple[float, float] | None = None,
    small: bool = False,
) -> Chart:
    write: Callable[[float], str] = "{:.1f} %".format if scale.in_percent else "{:.4g}".format
    label = "%" if scale.in_percent else scale.name
    return Chart(ident, title, across, label, lines, bands, limits, write=write, legend=not small, small=small)


def _limits(low: float, high: float) -> tuple[float, float]:
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def _strips(run: RunResult) -> list[Band]:
    """The block of each stay as a strip of its colour."""
    visits = run.visits
    if len(visits) > MOST_STRIPS:
        return []
    return [Band(visit.first - 1, visit.last, color=of_block(visit.block).color) for visit in visits]


def _visits_of(run: RunResult, block: int) -> list[Band]:
    stays = [visit for visit in run.visits if visit.block == block]
    return [Band(stay.first - 1, stay.last, tinted=True) for stay in stays] if len(stays) <= MOST_BANDS else []


def _together(names: Sequence[str], of: int) -> str:
    if len(names) <= 3:
        return ", ".join(names)
    return f"all {of} runs" if len(names) == of else f"{names[0]} and {len(names) - 1} more"
