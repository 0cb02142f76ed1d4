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
    assert math.isnan(Interval.of([2.0]).reach)
    assert str(Interval.of([2.0])) == "2.0"


def test_a_gain_is_taken_seed_by_seed(a_series: A_SERIES) -> None:
    series = runs(a_series, fedavg=(40, 50, 60), mm_psgd=(45, 55, 65))
    assert gains.difference(series, "mm-psgd", "fedavg").signed() == "+5.0 [+5.0, +5.0]"
    lines = gains.table(series).splitlines()
    assert len(lines) == 4
    level = "55.0 [30.2, 79.8]"
    assert lines[3].startswith(f"| MM-PSGD | {level} | +5.0 [+5.0, +5.0] | {level} | 1000 | the block |")


@pytest.mark.parametrize(
    ("told", "both", "verdict"),
    [
        ((58.0, 58.5, 59.0), (60.0, 60.5, 61.0), ("does better than the predictors (+3.5", "add to that (+2.0")),
        ((51.0, 51.5, 52.0), (51.0, 51.6, 51.9), ("does not reach the predictors (-3.5", "add nothing that these")),
        ((55.0, 54.0, 56.0), (50.0, 49.0, 51.0), ("does as well as the predictors (+0.0", "take from that (-5.0")),
    ],
)
def test_the_sentence_follows_the_numbers(
    a_series: A_SERIES, told: tuple[float, ...], both: tuple[float, ...], verdict: tuple[str, str]
) -> None:
    predictors = {"fedavg": (40.0, 40.0, 40.0), "mm_psgd": (54.5, 55.0, 55.5)}
    series = runs(a_series, **predictors, told_block_fedavg=told, told_block_mm_psgd=both)
    text = gains.sentence(series)
    assert text.startswith("**A predictor for each block is worth +15.0 [")
    assert verdict[0] in text
    assert verdict[1] in text
    first = [one for one in series if one.seed == 0]
    assert gains.sentence(first).startswith("One seed so far, which gives no interval and no verdict: MM-PSGD is +14.5")
    assert gains.sentence(series[:6]) == "Not run yet: told-block-fedavg, told-block-mm-psgd."
