"""The paper's claims beside what was measured, as Markdown. In %; of several seeds the mean, and least to most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from perennial.simulation.paper import summary
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
)
from perennial.simulation.paper.mix import RUNS, Told
from perennial.simulation.paper.series import Series

Found = Mapping[str, Sequence[Series]]  # the series by experiment

TARGETS = (0.5, 0.55, 0.6, 0.62)


def figure2(series: Sequence[Series]) -> str:
    """The four runs of the paper's figure, and Algorithm 1's own average."""
    claims = {**FIGURE2, "mm-mean": MISSING}
    rows = [[LABELS[run], claim, *_accuracies(summary.of_run(series, run))] for run, claim in claims.items()]
    return table(["", "paper", "best", "mean of last cycle", "least and most in last cycle"], rows)


def ablations(found: Found) -> str:
    rows = [
        [LABELS[run], *_accuracies(summary.of_run(found["figure2"], run))] for run in ("mm-psgd", *ABLATIONS, "mc-psgd")
    ]
    return table(["predictor", "best", "mean of last cycle", "least and most in last cycle"], rows)


def mix(told: Sequence[Told]) -> str:
    """What is left of a predictor's lead once a model without one is told the block's mix of labels."""
    rows = []
    for run in RUNS:
        seeds = [one for one in told if one.run == run]
        rows.append([LABELS[run], _spread([one.plain for one in seeds]), _spread([one.told for one in seeds])])
    return table(["after the last round", "as it is", "told the block's mix of labels"], rows if told else [])


def votes(found: Found) -> str:
    """The share of rounds won by the separate chain: by cycle, and by how long the block has been there."""
    series = summary.of_run(found["figure2"], "mc-psgd")
    cycles = sorted({int(cycle) for one in series for cycle in one.cycle})
    places = sorted({int(place) for one in series for place in one.place})
    spans = [f"{before + 1} to {place}" for before, place in zip([0, *places], places, strict=False)]
    by_cycle = [_spread([_won(one, one.cycle == cycle) for one in series]) for cycle in cycles]
    by_place = [_spread([_won(one, one.place == place) for one in series]) for place in places]
    won = "rounds won by the separate chain, %"
    return "\n\n".join(
        table([heading, *map(str, columns)], [[won, *shares]])
        for heading, columns, shares in (("cycle", cycles, by_cycle), ("rounds into a block", spans, by_place))
    )


def forgetting(found: Found) -> str:
    series = summary.of_run(found["figure2"], "fedavg")
    lost = [summary.forgotten(one) for one in series]
    if not lost or not all(lost):
        return table(["rounds since the block was trained"], [])
    step = series[0].rounds_per_block
    shared = set.intersection(*(set(one) for one in lost))
    since = sorted(near for near in shared if near % step == 0 or near == min(shared))
    cells = [_spread([100 * float(np.mean(one[near])) for one in lost]) for near in since]
    return table(
        ["rounds since the block was trained", *(str(near) for near in since)], [["change of accuracy, points", *cells]]
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
        rows.append([LABELS[run], *(_cost(series, target) for target in TARGETS)])
    mm, mc = (summary.of_run(found["figure2"], run) for run in ("mm-psgd", "mc-psgd"))
    if mm and mc:
        claim = f"**bytes of MC over MM; paper: 2·M^¼ = {2 * mm[0].blocks ** 0.25:.2f}**"
        rows.append([claim, *(_overhead(mm, mc, target) for target in TARGETS)])
    return table(["", *(f"{100 * target:.0f} %" for target in TARGETS)], rows)


def table1(found: Found) -> str:
    rows = []
    for strategy, claims in TABLE1.items():
        series = [_swept(found["figure3"], strategy, setting) for setting in LOCAL_ITERATIONS]
        rows.append([f"{LABELS[strategy]}, paper", *(f"{claim:,}" for claim in claims)])
        rows.append([f"{LABELS[strategy]}, ours", *(_rounds_to(one, 0.6) for one in series)])
        rows.append([f"{LABELS[strategy]}, our best accuracy", *(over(one, _best) for one in series)])
    return table(["local iterations I", *LOCAL_ITERATIONS], rows)


def figure4(found: Found) -> str:
    settings = ("2", "5", "10")
    rows = []
    for strategy in ("fedavg", "mm-psgd", "mc-psgd"):
        series = [_swept(found["figure4"], strategy, setting) for setting in settings]
        claims = [FIGURE4.get((strategy, setting), MISSING) for setting in settings]
        rows.append([f"{LABELS[strategy]}, paper", *claims])
        rows.append([f"{LABELS[strategy]}, our best", *(over(one, _best) for one in series)])
        rows.append([f"{LABELS[strategy]}, our last cycle", *(_wobble(one) for one in series)])
    shuffled = [_swept(found["figure4"], "fedavg", setting, shuffled=True) for setting in settings]
    rows.append(["FedAvg, shuffled (no blocks), our best", *(over(one, _best) for one in shuffled)])
    return table(["blocks M", *settings], rows)


def figure5(found: Found) -> str:
    settings = ("0.05", "0.1", "0.15", "0.2")
    rows = []
    for strategy, claim in FIGURE5.items():
        cells = [over(_swept(found["figure5"], strategy, setting), _best) for setting in settings]
        rows.append([LABELS[strategy], claim, *cells])
    return table(["best accuracy", "paper, at all rates", *(f"{100 * float(one):.0f} %" for one in settings)], rows)


def calibration(series: Sequence[Series], heading: str) -> str:
    """FedAvg and MM-PSGD by blocks and a setting, beside the paper's."""
    rows = []
    for blocks in sorted({one.blocks for one in series}):
        of_blocks = [one for one in series if one.blocks == blocks]
        for setting in sorted({one.setting for one in of_blocks}, key=float):
            fedavg, mm = (_swept(of_blocks, strategy, setting) for strategy in ("fedavg", "mm-psgd"))
            cells = [_wobble(fedavg), over(fedavg, _best), over(mm, _best), _rounds_to(mm, 0.6)]
            rows.append([str(blocks), setting, *cells])
        rows.append([str(blocks), "**paper**", *_claims(blocks)])
    columns = ["FedAvg's last cycle (least to most)", "FedAvg's best", "MM-PSGD's best", "MM-PSGD's rounds to 60 %"]
    return table(["blocks M", heading, *columns], rows)


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
        chains = [_swept(found[name], strategy, setting) for strategy in ("fedavg", "mm-psgd", "mc-psgd")]
        won = over(chains[2], lambda one: 100 * summary.separate_share(one))
        rows.append([setting, _wobble(chains[0]), *(over(one, _last) for one in chains[1:]), won])
    columns = ["FedAvg (least to most)", "MM-PSGD", "MC-PSGD", "rounds won by the separate chain, %"]
    return table([heading, *columns], rows)


def neighbours(found: Found) -> str:
    series = found["neighbours"]
    settings = sorted({one.setting for one in series}, key=int, reverse=True)
    rows = []
    for strategy, tuning in sorted({(one.strategy, _tuning(one)) for one in series}, key=_by_label):
        swept = [
            [one for one in series if (one.strategy, _tuning(one), one.setting) == (strategy, tuning, setting)]
            for setting in settings
        ]
        sent = over(swept[0], lambda one: float(one.megabytes[-1] / one.rounds[-1]))
        rows.append([LABELS[strategy] + tuning, *(_wobble(one) for one in swept), sent])
    columns = [f"{setting} labels a block: last cycle (least to most)" for setting in settings]
    return table(["", *columns, "MB a round"], rows)


def _tuning(series: Series) -> str:
    """What a run is named by after its setting: a server-lr that is not the default."""
    return series.run.partition(f"labels-per-block-{series.setting}")[2].replace("-server-lr-", ", server-lr ")


def _by_label(row: tuple[str, str]) -> tuple[int, str]:
    return list(LABELS).index(row[0]), row[1]


# --- Cells ------------------------------------------------------------------------------------------------------------


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "Not run yet."
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def over(series: Sequence[Series], quantity: Callable[[Series], float]) -> str:
    """A quantity over seeds: its mean, and least and greatest where there are several."""
    return _spread([quantity(one) for one in series])


def _spread(values: Sequence[float], digits: int = 1) -> str:
    if not values or np.isnan(values).any():
        return MISSING
    mean = f"{np.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _best(series: Series) -> float:
    return 100 * summary.best(series)


def _last(series: Series) -> float:
    return 100 * summary.last_cycle(series).mean


def _accuracies(series: Sequence[Series]) -> list[str]:
    return [over(series, _best), over(series, _last), _range(series)]


def _range(series: Sequence[Series]) -> str:
    wobbles = [summary.last_cycle(one) for one in series]
    if not wobbles:
        return MISSING
    least, most = (np.mean([getattr(one, name) for one in wobbles]) for name in ("least", "most"))
    return f"{100 * least:.1f} to {100 * most:.1f}"


def _wobble(series: Sequence[Series]) -> str:
    return f"{over(series, _last)} ({_range(series)})" if series else MISSING


def _swept(series: Sequence[Series], strategy: str, setting: str, *, shuffled: bool = False) -> list[Series]:
    found = [one for one in series if (one.strategy, one.setting, one.shuffled) == (strategy, setting, shuffled)]
    return summary.of_run(found, found[0].run) if found else []


def _won(series: Series, inside: NDArray[np.bool_]) -> float:
    return 100 * float(series.separate[inside].mean()) if inside.any() else float("nan")


def _rounds_to(series: Sequence[Series], target: float) -> str:
    reached = [summary.reach(one, target) for one in series]
    if not reached or None in reached:
        ended = min((int(one.rounds[-1]) for one in series), default=0)
        return f"not in {ended:,}" if ended else MISSING
    return _spread([one.server_round for one in reached if one], 0)


def _cost(series: Sequence[Series], target: float) -> str:
    reached = [one for one in (summary.reach(one, target) for one in series) if one]
    if not series or len(reached) < len(series):
        return MISSING
    rounds, size, seconds = (
        float(np.mean([getattr(one, name) for one in reached])) for name in ("server_round", "megabytes", "seconds")
    )
    return f"{rounds:,.0f} rounds, {size / 1000:.2f} GB, {seconds:,.0f} s"


def _overhead(mm: Sequence[Series], mc: Sequence[Series], target: float) -> str:
    pairs = [(summary.reach(a, target), summary.reach(b, target)) for a, b in zip(mm, mc, strict=False)]
    ratios = [b.megabytes / a.megabytes for a, b in pairs if a and b]
    return _spread(ratios, 2) if len(ratios) == len(pairs) else MISSING
