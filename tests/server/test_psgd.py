"""The maths on hand-sized arrays, with exact numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.server.psgd import choose, fold


def vector(*values: float) -> Any:
    return np.array(values, np.float32)


def folded_in(old: Any, model: Any, folded: int, decay: float | None) -> Any:
    return fold({"w": old}, {"w": model}, folded, decay, {"w": np.dtype(np.float32)})["w"]


def test_the_first_fold_discards_the_initial_predictor() -> None:
    for decay in (None, 0.5, 1.0):
        assert folded_in(vector(9, 9), vector(1, 2), 0, decay).tolist() == [1, 2]


def test_the_running_mean_weighs_the_old_predictor_by_r() -> None:
    assert folded_in(vector(1, 2), vector(5, 6), 3, None).tolist() == [2, 3]


def test_exponential_averaging_keeps_the_decay_whatever_r_is() -> None:
    for folded in (1, 2, 100):
        assert folded_in(vector(1, 2), vector(5, 6), folded, 0.25).tolist() == [4, 5]


def test_decay_zero_takes_each_model_whole_and_decay_one_keeps_the_first() -> None:
    assert folded_in(vector(1), vector(5), 4, 0.0).tolist() == [5]
    assert folded_in(vector(1), vector(5), 4, 1.0).tolist() == [1]


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30))
def test_folding_by_running_mean_gives_the_mean_of_all(values: list[float]) -> None:
    predictor = vector(77)
    for folded, value in enumerate(values):
        predictor = folded_in(predictor, vector(value), folded, None)
    assert abs(float(predictor[0]) - math.fsum(values) / len(values)) < 1e-3


@pytest.mark.parametrize(
    ("mixed", "separate", "chosen"), [(1.0, 2.0, "mixed"), (2.0, 1.0, "separate"), (1.0, 1.0, "mixed")]
)
def test_the_smaller_loss_is_chosen_and_a_tie_goes_to_the_mixed_chain(
    mixed: float, separate: float, chosen: str
) -> None:
    assert choose(mixed, separate) == chosen


@pytest.mark.parametrize(("mixed", "separate"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, -math.inf)])
def test_losses_that_are_not_finite_are_never_compared(mixed: float, separate: float) -> None:
    with pytest.raises(ValueError, match="losses must be finite to be compared"):
        choose(mixed, separate)


# --- Named arrays -----------------------------------------------------------------------------------------------------


def named(**arrays: Any) -> dict[str, Any]:
    return {name: np.asarray(array) for name, array in arrays.items()}


def dtypes(**names: str) -> dict[str, np.dtype[Any]]:
    return {name: np.dtype(one) for name, one in names.items()}


def test_floats_are_folded_in_float64_and_cast_back() -> None:
    old, new = np.float16(0.11), np.float16(1.59)
    half = fold(named(w=old), named(w=new), 2, None, dtypes(w="float16"))["w"]
    assert (half.dtype, half) == (np.float16, np.float16(float(old) * 2 / 3 + float(new) / 3))
    assert half != np.float16(2 / 3) * old + np.float16(1 / 3) * new
    double = fold(named(w=1.0), named(w=1e-12), 1, None, dtypes(w="float64"))["w"]
    assert (double.dtype, float(double)) == (np.float64, 0.5 + 0.5e-12)
    pair = fold(named(w=2j), named(w=4.0 + 0j), 1, 0.5, dtypes(w="complex64"))["w"]
    assert (pair.dtype, complex(pair)) == (np.complex64, 2 + 1j)


@pytest.mark.parametrize(
    ("dtype", "newest", "expected"),
    [
        ("int64", np.array([7, 2**62 + 1]), [7, 2**62 + 1]),
        ("int64", np.array([4.999999999999999, 5.16]), [5, 5]),
        ("uint8", np.array([200.0]), [200]),
        ("bool", np.array([True, False]), [True, False]),
        ("bool", np.array([0.9999999999, 0.2, 0.8]), [True, False, True]),
    ],
)
def test_what_is_whole_or_true_or_false_comes_from_the_newest_model(dtype: str, newest: Any, expected: Any) -> None:
    old = named(count=np.zeros(len(newest), dtype))
    for folded in (0, 1, 5):
        found = fold(old if folded else {}, named(count=newest), folded, 0.5, dtypes(count=dtype))["count"]
        assert (found.dtype, found.tolist()) == (np.dtype(dtype), expected)
