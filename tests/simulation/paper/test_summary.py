"""Series put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perennial.simulation.paper import summary
from perennial.simulation.paper.plan import PARTS
from tests.simulation.paper.conftest import A_SERIES


def test_what_a_sweep_leaves_to_figure_2_is_its_first_seed_cut_to_the_sweeps_length(a_series: A_SERIES) -> None:
    short = a_series("I5", (10, 20, 30, 40), local_iterations=5, cycles=1)
    figure2 = [a_series(seed=0), a_series(seed=1), a_series("mm-mean")]
    found = {part.name: [] for part in PARTS} | {"figure2": figure2, "figure3": [short]}
    whole = summary.completed(found)
    assert [(one.run, one.setting, one.seed, one.planned) for one in whole["figure3"]] == [
        ("I5", "5", 0, 4),
        ("mm-psgd", "10", 0, 4),
    ]
    assert whole["figure3"][1].evaluated.server_round.tolist() == [1, 2, 3, 4]
    assert whole["figure2"] == figure2
    assert whole["figure4"] == []


def test_a_calibration_takes_what_figures_2_and_4_have_of_other_numbers_of_blocks(a_series: A_SERIES) -> None:
    parts = {"figure2": [a_series()], "figure4": [a_series("M2-mm-psgd")], "calibration-blocks": [a_series("skewed")]}
    whole = summary.completed({part.name: [] for part in PARTS} | parts)
    assert [one.run for one in whole["calibration-blocks"]] == ["skewed", "mm-psgd", "M2-mm-psgd"]
    assert len({one.setting for one in whole["calibration-blocks"][1:]}) == 1


def test_seeds_that_are_whole_count_and_others_only_while_none_is(a_series: A_SERIES) -> None:
    whole, partial = a_series(seed=0), a_series(seed=1, means=(10, 20))
    assert summary.of_run([whole, partial], "mm-psgd") == [whole]
    assert summary.of_run([partial], "mm-psgd") == [partial]
    assert summary.of_run([whole], "fedavg") == []


def test_a_curve_spans_the_seeds_at_their_common_rounds(a_series: A_SERIES) -> None:
    found = summary.curve([a_series(seed=0), a_series(seed=1, means=(20, 40))])
    assert found.rounds.tolist() == [1, 2]
    assert found.mean.tolist() == pytest.approx([0.15, 0.3])
    assert (found.low.tolist(), found.high.tolist()) == ([0.1, 0.2], [0.2, 0.4])


def test_forgetting_is_counted_from_the_end_of_a_blocks_visit(a_series: A_SERIES) -> None:
    """Cycle 1 trains block 0 in rounds 5 and 6; in rounds 7 and 8 its accuracy is 10 and 0 points below round 6's."""
    lost = summary.forgotten(a_series())
    assert {since: pytest.approx(changes) for since, changes in lost.items()} == {1: [-0.1], 2: [0.0]}
    assert summary.forgotten(a_series(means=(10, 20, 30, 40))) == {}


def test_a_series_at_anothers_pace_has_its_own_rounds(a_series: A_SERIES) -> None:
    one = a_series()
    slow = [replace(one, evaluated=replace(one.evaluated, seconds=np.arange(1, 9) * seconds)) for seconds in (1.0, 3.0)]
    (found,) = summary.at_pace([a_series(means=(10, 20))], slow)
    assert (found.evaluated.server_round.tolist(), found.evaluated.seconds.tolist()) == ([1, 2], [2.0, 4.0])
    (same,) = summary.at_pace([a_series(means=(10, 20))], [])
    assert same.evaluated.seconds.tolist() == [0.5, 1.0]


def test_runs_of_one_pass_cost_its_time_once(a_series: A_SERIES) -> None:
    together = [a_series("a"), a_series("b", strategy="fedavg")]
    assert summary.training_seconds(together) == 4
    others = [a_series("c", strategy="ifca"), a_series("a", seed=1), replace(a_series("d"), blocks=1)]
    assert summary.training_seconds([*together, *others]) == 16
