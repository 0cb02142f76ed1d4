"""Exact sums: against fractions, in whatever order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.server import psgd
from perennial.server.exact import ExactMean

# Of all sizes that a float32 has, down to the smallest.
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.integers(1, 2**40).map(float)
terms = st.lists(st.tuples(floats, floats, weights), min_size=1, max_size=12)


def mean(listed: list[tuple[float, float, float]]) -> np.ndarray:
    made = ExactMean()
    for first, second, weight in listed:
        made.add(np.array([first, second], np.float32), weight)
    return made.mean()


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
        # A value halfway between two floats may be rounded twice.
        assert found[index] in (
            right,
            np.nextafter(right, np.float32(np.inf)),
            np.nextafter(right, np.float32(-np.inf)),
        )


def test_what_cancels_leaves_what_is_small() -> None:
    listed = [(1e30, 1.0, 1.0), (1e-30, 2.0, 1.0), (-1e30, 3.0, 1.0)]
    assert mean(listed)[0] == np.float32(1e-30 / 3)


def test_zeros_have_the_mean_zero() -> None:
    assert mean([(0.0, 0.0, 1.0)]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("weighted", [False, True])
def test_models_have_the_mean_of_the_algorithms(weighted: bool) -> None:
    rng = np.random.default_rng(0)
    models = [rng.normal(size=1000).astype(np.float32) for _ in range(30)]
    counts = [float(n) for n in rng.integers(1, 500, 30)] if weighted else [1.0] * 30
    made = ExactMean()
    for model, count in zip(models, counts, strict=True):
        made.add(model, count)
    np.testing.assert_allclose(made.mean(), psgd.mean(models, counts), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), 2.0**53])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        ExactMean().add(np.ones(2, np.float32), weight)


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        ExactMean().mean()
