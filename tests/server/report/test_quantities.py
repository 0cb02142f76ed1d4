"""Each quantity that runs are compared by, in numbers that can be told by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perennial.server.report import quantities
from perennial.server.report.columns import Evaluated
from perennial.server.report.quantities import Cost, Spread
from perennial.server.report.reading import from_records
from tests.server.report.records import CONFIG, eight_rounds


def evaluated(means: dict[int, float], cycle_length: int = 4) -> Evaluated:
    """Mean accuracies by round, of a run of one block; a round takes 10 bytes and half a second, and nobody votes."""
    rounds = np.array(list(means), dtype=np.int64)
    none = np.zeros(len(rounds), dtype=np.int64)
    accuracy = np.array(list(means.values()), dtype=np.float64)
    return Evaluated(
        server_round=rounds,
        cycle=(rounds - 1) // cycle_length,
        block=none,
        cycles_over=rounds // cycle_length,
        mean_accuracy=accuracy,
        accuracy=accuracy[:, np.newaxis],
        bytes=10 * rounds,
        seconds=rounds / 2,
        votes=none,
        won=none,
    )


TWO_CYCLES = {2: 0.25, 4: 0.5, 6: 0.75, 8: 0.625}
NOTHING = evaluated({})


def test_final_is_the_last_that_was_measured() -> None:
    assert quantities.final(evaluated(TWO_CYCLES)) == 0.625
    assert np.isnan(quantities.final(NOTHING))


def test_best_is_the_greatest_of_all_evaluations() -> None:
    assert quantities.best(evaluated(TWO_CYCLES)) == 0.75
    assert np.isnan(quantities.best(NOTHING))


@pytest.mark.parametrize(
    ("means", "spread"),
    [
        (TWO_CYCLES, Spread(0.6875, 0.625, 0.75)),
        # Broken off in the third cycle: the second is the last that is whole.
        ({**TWO_CYCLES, 10: 0.125}, Spread(0.6875, 0.625, 0.75)),
        # In the first cycle still: everything that was measured.
        ({1: 0.25, 3: 0.75}, Spread(0.5, 0.25, 0.75)),
        # The third cycle, rounds 9 to 12, is whole, and was never evaluated: the latest.
        ({6: 0.25, 13: 0.5}, Spread(0.5, 0.5, 0.5)),
    ],
    ids=["whole", "broken off", "first cycle", "not evaluated"],
)
def test_the_last_cycle_is_the_last_that_is_whole(means: dict[int, float], spread: Spread) -> None:
    assert quantities.last_cycle(evaluated(means)) == spread


def test_the_last_cycle_of_nothing_was_not_measured() -> None:
    spread = quantities.last_cycle(NOTHING)
    assert np.isnan([spread.mean, spread.least, spread.most]).all()


def test_by_the_clock_cycles_may_differ_in_length() -> None:
    found = evaluated({2: 0.25, 4: 0.5, 6: 0.75})
    by_clock = replace(found, cycle=np.array([0, 1, 1]), cycles_over=np.array([0, 1, 1]))
    assert quantities.last_cycle(by_clock).mean == 0.25
    over = replace(by_clock, cycles_over=np.array([0, 1, 2]))
    assert quantities.last_cycle(over).mean == 0.625


def test_reach_is_the_first_measurement_at_the_target_with_its_cost() -> None:
    found = evaluated(TWO_CYCLES)
    assert quantities.reach(found, 0.45) == Cost(0.5, 4, 40, 2.0)
    assert quantities.reach(found, 0.75) == Cost(0.75, 6, 60, 3.0)
    assert quantities.reach(found, 0.76) is None
    assert quantities.reach(NOTHING, 0.1) is None


def test_reach_takes_what_rounding_left_a_little_below_the_target() -> None:
    below = 0.1 * 3 - 1e-12
    assert quantities.reach(evaluated({1: below}), 0.3) is not None


def test_the_separate_chains_share_is_of_the_votes() -> None:
    assert quantities.separate_share(np.array([1, 0, 2]), np.array([2, 0, 3])) == 3 / 5
    assert np.isnan(quantities.separate_share(np.array([0]), np.array([0])))


def test_the_separate_chains_share_at_evaluations_in_windows_and_by_block_counts_votes_alone() -> None:
    """Round 8 did not vote."""
    run = from_records("run", CONFIG, eight_rounds())
    np.testing.assert_allclose(quantities.separate_share_at(run.evaluated), [1 / 2, 1, 0, 0, np.nan])
    edges, shares = quantities.separate_share_in_windows(run.rounds, 3)
    assert edges.tolist() == [0, 3, 6, 8]
    np.testing.assert_allclose(shares, [2 / 3, 1 / 3, 0.0])
    np.testing.assert_allclose(quantities.separate_share_by_block(run.rounds, 2), [1 / 4, 2 / 3])


def test_windows_have_at_least_one_round() -> None:
    empty = from_records("run", CONFIG, []).rounds
    assert quantities.separate_share_in_windows(empty, 5)[1].tolist() == []
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        quantities.separate_share_in_windows(empty, 0)
