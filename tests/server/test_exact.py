"""Exact sums: against fractions, in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.wire.chains import Vector
from perennial.server.exact import ExactMean

# Of all sizes that a float32 has, down to the smallest.
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.integers(1, 2**40).map(float)
terms = st.lists(st.tuples(floats, floats, weights), min_size=1, max_size=12)


def mean(listed: list[tuple[float, float, float]]) -> np.ndarray:
    return mean_of([np.array(pair, np.float32) for *pair, _ in listed], [weight for *_, weight in listed])


def mean_of(models: Sequence[Vector], weights: Sequence[float]) -> Vector:
    made = ExactMean()
    for model, weight in zip(models, weights, strict=True):
        made.add(model, weight)
    return made.mean()


def test_the_mean_of_equal_clients_is_the_plain_one() -> None:
    assert mean([(1, 2, 1), (3, 6, 1)]).tolist() == [2, 4]


def test_a_node_of_three_clients_counts_three_times() -> None:
    assert mean([(1, 0, 3), (5, 8, 1)]).tolist() == [2, 2]


def test_the_mean_is_not_summed_in_float32() -> None:
    """In it the one would be lost beside 2**25."""
    found = mean([(2.0**25, 1, 1), (1, 1, 1), (-(2.0**25), 1, 1)])
    assert found[0] == np.float32(1 / 3)
    assert found.dtype == np.float32


@given(terms, st.randoms(use_true_random=False))
def test_no_order_changes_a_bit(listed: list[tuple[float, float, float]], random: object) -> None:
    shuffled = list(listed)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean(shuffled).tobytes() == mean(listed).tobytes()


@given(terms)
def test_the_mean_is_that_of_fractions_to_the_cast(listed: list[tuple[float, float, float]]) -> None:
    total = sum(Fraction(weight) for *_, weight in listed)
    found = mean(listed)
    for index in range(2):
        exact = sum(Fraction(one[index]) * Fraction(one[2]) for one in listed) / total
        right = np.float32(float(exact))
        # A value halfway between two floats may be rounded twice. The largest float has no neighbour but infinity.
        with np.errstate(over="ignore"):
            neighbours = np.nextafter(right, np.array([-np.inf, np.inf], np.float32))
        assert found[index] in (right, *neighbours)


def test_what_cancels_leaves_what_is_small() -> None:
    listed = [(1e30, 1.0, 1.0), (1e-30, 2.0, 1.0), (-1e30, 3.0, 1.0)]
    assert mean(listed)[0] == np.float32(1e-30 / 3)


def test_zeros_have_the_mean_zero() -> None:
    assert mean([(0.0, 0.0, 1.0)]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_models_have_the_mean_that_a_sum_in_float64_has(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    models = rng.normal(size=(30, 1000)).astype(np.float32)
    weights = rng.integers(1, 500, 30).astype(float) if weighted else np.ones(30)
    expected = np.average(models.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(mean_of(list(models), weights.tolist()), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), 2.0**53])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        ExactMean().add(np.ones(2, np.float32), weight)


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        ExactMean().mean()
