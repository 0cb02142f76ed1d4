"""The paper's claims beside what was measured, as Markdown. In %; of several seeds the mean, and least to most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from perennial.server.report.quantities import separate_share
from perennial.simulation.paper import cells, summary
from perennial.simulation.paper.claims import (
    ABLATIONS,
    FEDAVG,
    FIGURE2,
    FIGURE4,
    FIGURE5,
    LABELS,
    LOCAL_ITERATIONS,
    MISSING,
    TABLE1,
    TOLD,
)
from perennial.simulation.paper.mix import RUNS, Told
from perennial.simulation.paper.series import Series

Found = Mapping[str, Sequence[Series]]  # the series by experiment

TARGETS = (0.5, 0.55, 0.6, 0.62)


def figure2(series: Sequence[Series]) -> str:
    """The four runs of the paper's figure, and Algorithm 1's own average."""
    claims = {**FIGURE2, "mm-mean": MISSING}
    rows = [[LABELS[run], claim, *cells.accuracies(summary.of_run(series, run))] for run, claim in claims.items()]
    return cells.table(["", "paper", "best", "mean of last cycle", "least and most in last cycle"], rows)


def told(found: Found) -> str:
    """Models that are told the block beside those that are not: the seeds and rounds that both have."""
    with_it = found["figure2-told"]
    if not with_it:
        return cells.table([], [])
    common, seeds = min(one.last_round for one in with_it), {one.seed for one in with_it}
    series = [one.until(common) for one in (*found["figure2"], *with_it) if one.seed in seeds]
    runs = (*FIGURE2, "separate-alone", *TOLD)
    rows = [[LABELS[run], *cells.accuracies([one for one in series if one.run == run])] for run in runs]
    return cells.table([f"until round {common:,}", "best", "mean of last whole cycle", "least and most in it"], rows)


def ablations(found: Found) -> str:
    rows = [
        [LABELS[run], *cells.accuracies(summary.of_run(found["figure2"], run))]
        for run in ("mm-psgd", *ABLATIONS, "mc-psgd")
    ]
    return cells.table(["predictor", "best", "mean of last cycle", "least and most in last cycle"], rows)


def mix(told: Sequence[Told]) -> str:
    """What is left of a predictor's lead once a model without one is told the block's mix of labels."""
    rows = []
    for run in RUNS:
        seeds = [one for one in told if one.run == run]
        rows.append(
            [LABELS[run], cells.spread([one.plain for one in seeds]), cells.spread([one.told for one in seeds])]
        )
    return cells.table(["after the last round", "as it is", "told the block's mix of labels"], rows if told else [])


def votes(found: Found) -> str:
    """The share of rounds won by the separate chain: by cycle, and by how long the block has been there."""
    series = summary.of_run(found["figure2"], "mc-psgd")
    cycles = sorted({int(cycle) for one in series for cycle in one.evaluated.cycle})
    places = sorted({int(place) for one in series for place in one.place})
    spans = [f"{before + 1} to {place}" for before, place in zip([0, *places], places, strict=False)]
    by_cycle = [cells.spread([_won(one, one.evaluated.cycle == cycle) for one in series]) for cycle in cycles]
    by_place = [cells.spread([_won(one, one.place == place) for one in series]) for place in places]
    won = "rounds won by the separate chain, %"
    return "\n\n".join(
        cells.table([heading, *map(str, columns)], [[won, *shares]])
        for heading, columns, shares in (("cycle", cycles, by_cycle), ("rounds into a block", spans, by_place))
    )


def forgetting(found: Found) -> str:
    series = summary.of_run(found["figure2"], "fedavg")
    lost = [summary.forgotten(one) for one in series]
    if not lost or not all(lost):
        return cells.table(["rounds since the block was trained"], [])
    step = series[0].rounds_per_block
    shared = set.intersection(*(set(one) for one in lost))
    since = sorted(near for near in shared if near % step == 0 or near == min(shared))
    changes = [cells.spread([100 * float(np.mean(one[near])) for one in lost]) for near in since]
    return cells.table(
        ["rounds since the block was trained", *(str(near) for near in since)],
        [["change of accuracy, points", *changes]],
    )


def communication(found: Found) -> str:
    """Rounds, gigabytes and seconds until targets are first measured, and MC-PSGD's overhead over MM-PSGD."""
    rows = []
    single = summary.of_run(found["figure2"], "fedavg-shuffled")
    for run in ("fedavg", "fedavg-shuffled", "mm-psgd", "mc-psgd"):
        series = summary.of_run(found["figure2"], run)
        if run in ("fedavg", "mm-psgd"):
            # Read from the pass that trains both chains; by itself it takes what the pass with one chain takes.
            series = summary.at_pace(series, single)
        rows.append([LABELS[run], *(cells.cost(series, target) for target in TARGETS)])
    mm, mc = (summary.of_run(found["figure2"], run) for run in ("mm-psgd", "mc-psgd"))
    if mm and mc:
        claim = f"**bytes of MC over MM; paper: 2·M^¼ = {2 * mm[0].blocks ** 0.25:.2f}**"
        rows.append([claim, *(cells.overhead(mm, mc, target) for target in TARGETS)])
    return cells.table(["", *(f"{100 * target:.0f} %" for target in TARGETS)], rows)


def table1(found: Found) -> str:
    rows = []
    for strategy, claims in TABLE1.items():
        series = [summary.of_setting(found["figure3"], strategy, setting) for setting in LOCAL_ITERATIONS]
        rows.append([f"{LABELS[strategy]}, paper", *(f"{claim:,}" for claim in claims)])
        rows.append([f"{LABELS[strategy]}, ours", *(cells.rounds_to(one, 0.6) for one in series)])
        rows.append([f"{LABELS[strategy]}, our best accuracy", *(cells.best(one) for one in series)])
    return cells.table(["local iterations I", *LOCAL_ITERATIONS], rows)


def figure4(found: Found) -> str:
    settings = ("2", "5", "10")
    rows = []
    for strategy in ("fedavg", "mm-psgd", "mc-psgd"):
        series = [summary.of_setting(found["figure4"], strategy, setting) for setting in settings]
        claims = [FIGURE4.get((strategy, setting), MISSING) for setting in settings]
        rows.append([f"{LABELS[strategy]}, paper", *claims])
        rows.append([f"{LABELS[strategy]}, our best", *(cells.best(one) for one in series)])
        rows.append([f"{LABELS[strategy]}, our last cycle", *(cells.wobble(one) for one in series)])
    shuffled = [summary.of_setting(found["figure4"], "fedavg", setting, shuffled=True) for setting in settings]
    rows.append(["FedAvg, shuffled (no blocks), our best", *(cells.best(one) for one in shuffled)])
    return cells.table(["blocks M", *settings], rows)


def figure5(found: Found) -> str:
    settings = ("0.05", "0.1", "0.15", "0.2")
    rows = []
    for strategy, claim in FIGURE5.items():
        measured = [cells.best(summary.of_setting(found["figure5"], strategy, setting)) for setting in settings]
        rows.append([LABELS[strategy], claim, *measured])
    return cells.table(
        ["best accuracy", "paper, at all rates", *(f"{100 * float(one):.0f} %" for one in settings)], rows
    )


def calibration(series: Sequence[Series], heading: str) -> str:
    """FedAvg and MM-PSGD by blocks and a setting, beside the paper's."""
    rows = []
    for blocks in sorted({one.blocks for one in series}):
        of_blocks = [one for one in series if one.blocks == blocks]
        for setting in sorted({one.setting for one in of_blocks}, key=float):
            fedavg, mm = (summary.of_setting(of_blocks, strategy, setting) for strategy in ("fedavg", "mm-psgd"))
            measured = [cells.wobble(fedavg), cells.best(fedavg), cells.best(mm), cells.rounds_to(mm, 0.6)]
            rows.append([str(blocks), setting, *measured])
        rows.append([str(blocks), "**paper**", *_claims(blocks)])
    columns = ["FedAvg's last cycle (least to most)", "FedAvg's best", "MM-PSGD's best", "MM-PSGD's rounds to 60 %"]
    return cells.table(["blocks M", heading, *columns], rows)


def _claims(blocks: int) -> list[str]:
    least, most = FEDAVG[blocks]
    fedavg = [f"{least} to {most}", MISSING] if least < most else [MISSING, str(most)]
    if blocks == 5:
        return [*fedavg, FIGURE2["mm-psgd"], f"{TABLE1['mm-psgd'][1]:,}"]
    return [*fedavg, FIGURE4["mm-psgd", str(blocks)], MISSING]


def sensitivity(found: Found, name: str, heading: str) -> str:
    settings = sorted({one.setting for one in found[name]}, key=float)
    rows = []
    for setting in settings:
        chains = [summary.of_setting(found[name], strategy, setting) for strategy in ("fedavg", "mm-psgd", "mc-psgd")]
        rows.append([setting, cells.wobble(chains[0]), *(cells.last(one) for one in chains[1:]), cells.won(chains[2])])
    columns = ["FedAvg (least to most)", "MM-PSGD", "MC-PSGD", "rounds won by the separate chain, %"]
    return cells.table([heading, *columns], rows)


def neighbours(found: Found) -> str:
    series = found["neighbours"]
    settings = sorted({one.setting for one in series}, key=int, reverse=True)
    rows = []
    for strategy, tuning in sorted({(one.strategy, _tuning(one)) for one in series}, key=_by_label):
        swept = [
            [one for one in series if (one.strategy, _tuning(one), one.setting) == (strategy, tuning, setting)]
            for setting in settings
        ]
        rows.append(
            [LABELS[strategy] + tuning, *(cells.wobble(one) for one in swept), cells.megabytes_per_round(swept[0])]
        )
    columns = [f"{setting} labels a block: last cycle (least to most)" for setting in settings]
    return cells.table(["", *columns, "MB a round"], rows)


def _won(series: Series, inside: NDArray[np.bool_]) -> float:
    return 100 * separate_share(series.evaluated.won[inside], series.evaluated.votes[inside])


def _tuning(series: Series) -> str:
    """What a run is named by after its setting: a server-lr that is not the default."""
    return series.run.partition(f"labels-per-block-{series.setting}")[2].replace("-server-lr-", ", server-lr ")


def _by_label(row: tuple[str, str]) -> tuple[int, str]:
    return list(LABELS).index(row[0]), row[1]
