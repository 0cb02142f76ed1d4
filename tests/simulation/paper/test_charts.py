"""Every experiment of the plan gets to the page: its figures say what they show, and its tables have numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from perennial.server.report.reading import from_records
from perennial.simulation.experiment import NamedRun
from perennial.simulation.paper import charts, page, plan, summary
from perennial.simulation.paper.claims import LABELS
from perennial.simulation.paper.mix import Told
from perennial.simulation.paper.plan import PARTS
from perennial.simulation.paper.series import Series, from_result
from perennial.simulation.paper.tables import Found
from tests.server.report.records import record

PAPER = ["fedavg", "mm-psgd", "mc-psgd"]
NAMES = {
    "figure2": ["fedavg", "fedavg-shuffled", "mm-psgd", "mc-psgd", "mm-mean", "fedavg-told", "mm-psgd-told"],
    "figure2-nine-labels": ["fedavg", "fedavg-shuffled", "mm-psgd", "mc-psgd", "mm-mean"],
    "ablations": ["mm-psgd", "mm-snapshot", "mm-decay-0.9", "mc-psgd", "mm-mean", "separate-alone"],
    "communication": ["fedavg", "fedavg-shuffled", "mm-psgd", "mc-psgd"],
    "neighbours": [*PAPER, "fedavgm", "fedadam", "fedrep", "ifca"],
}
LEGENDS = {
    **{figure: [LABELS[name] for name in names] for figure, names in NAMES.items()},
    "votes": [],
    "sensitivity": ["FedAvg, cyclic (bars: least to most)", "MM-PSGD", "MC-PSGD"],
    "forgetting": ["FedAvg's one model", "a predictor, kept while others train"],
    # FedAvg has no panel here, so its shuffled run, which figure 2 brings along, is not drawn either.
    "figure3": ["I = 5", "I = 10", "I = 15", "I = 20"],
    "figure4": ["M = 2", "M = 5", "M = 10", "shuffled"],
    "figure5": ["participation 5%", "participation 10%", "participation 15%", "participation 20%"],
    # A twentieth of the plan's 4, 20 and 100, but at least 2, as the quick one has it.
    "contradiction": ["E = 2", "E = 5"],
    "calibration-blocks": ["block skew 0.2", "block skew 0.3", "block skew 0.4", "block skew 0.5", "the paper's"],
    "calibration-labels": ["7 of 10 labels a block", "8 of 10 labels a block", "9 of 10 labels a block", "the paper's"],
}


def made_up(run: NamedRun, seed: int, key: str) -> Series:
    """Return a series of the run's shape: accuracy rises by a tenth of a point a round, votes alternate."""
    config = run.config
    records = [
        record(
            at + 1,
            config.blocks,
            config.rounds_per_block,
            bytes_down=400_000,
            bytes_up=600_000,
            chosen=("mixed", "separate")[at % 2] if config.strategy == "mc-psgd" else None,
            accuracy=[0.5 + at / 1000] * config.blocks,
        )
        for at in range(config.cycles * config.blocks * config.rounds_per_block)
    ]
    return from_result(from_records(run.name, {**config.to_mapping(), "seed": seed}, records), key)


@pytest.fixture(scope="module")
def whole() -> Found:
    """Every run of every part, as short as the quick plan has it, for each of the part's seeds."""
    found: dict[str, list[Series]] = {}
    for part in PARTS:
        (one,) = plan.experiments(part, Path("runs"), quick=True)
        runs = [run for runs in one.passes for run in runs]
        found[part.name] = [made_up(run, seed, part.key) for seed in part.seeds for run in runs]
    return summary.completed(found)


@pytest.fixture(scope="module")
def drawn(whole: Found) -> dict[str, Figure]:
    return charts.draw(whole)


def test_every_figure_is_drawn_and_every_table_has_numbers(whole: Found, drawn: dict[str, Figure]) -> None:
    assert set(drawn) == set(LEGENDS)
    texts = page.parts(whole, [Told("mm-psgd", 0, 50.0, 60.0)])
    assert [name for name, text in texts.items() if "Not run yet." in text or "Partial" in text] == []


@pytest.mark.parametrize("figure", LEGENDS)
def test_a_legend_names_what_its_figure_draws_and_nothing_else(drawn: dict[str, Figure], figure: str) -> None:
    assert [text.get_text() for legend in drawn[figure].legends for text in legend.get_texts()] == LEGENDS[figure]
