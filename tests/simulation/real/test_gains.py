"""Tables and sentences on real data: numbers by hand, and a verdict that follows them."""

from __future__ import annotations

import math

import pytest

from perennial.simulation.paper.series import Series
from perennial.simulation.real import gains
from perennial.simulation.real.gains import Interval
from tests.simulation.paper.conftest import A_SERIES, a_series

__all__ = ["a_series"]


def runs(make: A_SERIES, **means: tuple[float, ...]) -> list[Series]:
    """Return three seeds of each run, whose mean accuracies are the same in every round."""
    return [
        make(run.replace("_", "-"), (mean,) * 8, seed=seed)
        for run, values in means.items()
        for seed, mean in enumerate(values)
    ]


def test_an_interval_is_students() -> None:
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, 1.0367, 4.9633), abs=1e-3)
    assert str(found) == "3.0 [1.0, 5.0]"
    assert found.signed() == "+3.0 [+1.0, +5.0]"
    assert found.signed(2) == "+3.00 [+1.04, +4.96]"
    assert math.isnan(Interval.of([2.0]).reach)
    assert str(Interval.of([2.0])) == "2.0"


def test_a_gain_is_taken_seed_by_seed(a_series: A_SERIES) -> None:
    series = runs(a_series, fedavg=(40, 50, 60), mm_psgd=(45, 55, 65))
    assert gains.difference(series, "mm-psgd", "fedavg").signed() == "+5.0 [+5.0, +5.0]"
    lines = gains.table(series).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| FedAvg | 50.0 [25.2, 74.8] | – | -5.00 [-5.00, -5.00] | 50.0 ")
    level = "55.0 [30.2, 79.8]"
    assert lines[3].startswith(f"| MM-PSGD | {level} | +5.0 [+5.0, +5.0] | – | {level} | 1000 | the block |")


@pytest.mark.parametrize(
    ("told", "both", "verdicts"),
    [
        (
            (58.0, 58.5, 59.0),
            (60.0, 60.5, 61.0),
            (
                "better than these predictors (+3.5",
                "better than that model alone (+2.0",
                "better than predictors alone (+5.5",
            ),
        ),
        (
            (51.0, 51.5, 52.0),
            (51.0, 51.6, 51.9),
            (
                "worse than these predictors (-3.5",
                "as well as that model alone (+0.0",
                "worse than predictors alone (-3.5",
            ),
        ),
        (
            (55.0, 54.0, 56.0),
            (50.0, 49.0, 51.0),
            (
                "as well as these predictors (+0.0",
                "worse than that model alone (-5.0",
                "worse than predictors alone (-5.0",
            ),
        ),
    ],
)
def test_the_sentence_follows_the_numbers(
    a_series: A_SERIES, told: tuple[float, ...], both: tuple[float, ...], verdicts: tuple[str, ...]
) -> None:
    predictors = {"fedavg": (40.0, 40.0, 40.0), "mm_psgd": (54.5, 55.0, 55.5)}
    series = runs(a_series, **predictors, told_block_fedavg=told, told_block_mm_psgd=both)
    text = gains.sentence(series)
    assert text.startswith("**A predictor for each block is worth +15.00 [")
    assert [verdict for verdict in verdicts if verdict not in text] == []
    assert f"told the block does {verdicts[0]}" in text
    first = [one for one in series if one.seed == 0]
    assert gains.sentence(first).startswith("One seed so far, which gives no interval and no verdict: MM-PSGD is +14.5")
    assert gains.sentence(series[:6]) == "Not run yet: told-block-fedavg, told-block-mm-psgd."


def test_the_movement_is_from_the_middle_to_the_end(a_series: A_SERIES) -> None:
    rising = [a_series("fedavg", (10, 20, 30, 40, 50, 60, 70, 80), seed=seed, cycles=2) for seed in (0, 1)]
    flat = [a_series("mm-psgd", (50,) * 8, seed=seed, cycles=2) for seed in (0, 1)]
    assert gains.rise(rising, "fedavg").signed() == "+40.0 [+40.0, +40.0]"
    assert gains.movement(rising + flat) == (
        "From the middle of the run to its end these means moved by +0.0 (MM-PSGD) to +40.0 points (FedAvg)."
    )
    assert gains.movement([]) == "Not run yet."
