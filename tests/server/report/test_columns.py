"""The columns that everything else is asked of."""

from __future__ import annotations

import numpy as np
import pytest

from perennial.server.report.columns import Visit
from perennial.server.report.reading import from_records
from tests.server.report.records import ACCURACY, CONFIG, eight_rounds, record

CLOCK: dict[str, object] = {**CONFIG, "clock": "day: 08:00-20:00, night: 20:00-08:00"}


def test_evaluated_rounds_have_what_was_measured_and_what_it_cost_until_then() -> None:
    found = from_records("run", CONFIG, eight_rounds()).evaluated
    assert found.server_round.tolist() == [2, 4, 5, 7, 8]
    assert found.cycle.tolist() == [0, 0, 1, 1, 1]
    assert found.block.tolist() == [0, 1, 0, 1, 1]
    assert found.mean_accuracy.tolist() == pytest.approx([0.3, 0.4, 0.5, 0.7, 0.6])
    assert found.accuracy.tolist() == list(ACCURACY.values())
    assert found.bytes.tolist() == [300, 600, 750, 1050, 1200]
    assert found.seconds.tolist() == [1.0, 2.0, 2.5, 3.5, 4.0]


def test_votes_are_counted_since_the_evaluation_before() -> None:
    found = from_records("run", CONFIG, eight_rounds()).evaluated
    assert found.votes.tolist() == [2, 2, 1, 2, 0]
    assert found.won.tolist() == [1, 2, 0, 0, 0]


def test_by_rounds_a_cycle_is_over_with_its_last_round() -> None:
    found = from_records("run", CONFIG, eight_rounds()).evaluated
    assert found.cycles_over.tolist() == [0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("rounds", "manifest", "over"),
    [
        (3, {}, [0, 0, 0]),  # in the first cycle
        (4, {}, [0, 0, 1]),  # the second has begun, though it is not evaluated yet
        (5, {}, [0, 0, 1]),
        (5, {"format": 1}, [0, 0, 2]),  # the run has ended, and so has its last cycle
    ],
)
def test_by_the_clock_a_cycle_is_over_once_a_later_one_has_begun_or_the_run_has_ended(
    rounds: int, manifest: dict[str, object], over: list[int]
) -> None:
    cycles = [0, 0, 0, 1, 1]
    records = [
        record(number, cycle=cycles[number - 1], accuracy=[0.1, 0.1] if number <= 3 else ...)
        for number in range(1, rounds + 1)
    ]
    assert from_records("run", CLOCK, records, manifest).evaluated.cycles_over.tolist() == over


def test_until_keeps_what_was_evaluated_by_then() -> None:
    found = from_records("run", CONFIG, eight_rounds()).evaluated.until(6)
    assert found.server_round.tolist() == [2, 4, 5]
    assert found.accuracy.shape == (3, 2)
    assert found.cycles_over.tolist() == [0, 1, 1]


def test_visits_are_the_stays_in_blocks() -> None:
    run = from_records("run", CONFIG, eight_rounds()[:7])
    assert run.visits == (Visit(0, 0, 1, 2), Visit(0, 1, 3, 4), Visit(1, 0, 5, 6), Visit(1, 1, 7, 7))


@pytest.mark.parametrize("config", [CONFIG, CLOCK], ids=["by rounds", "by the clock"])
def test_a_run_without_rounds_or_evaluations_has_empty_columns(config: dict[str, object]) -> None:
    empty, unjudged = from_records("run", config, []), from_records("run", config, [record(1)])
    assert (len(empty.evaluated), len(unjudged.evaluated), empty.visits, empty.blocks) == (0, 0, (), 2)
    assert not np.any(empty.rounds.votes)
