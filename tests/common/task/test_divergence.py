"""Which losses say that a chain has diverged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.task.divergence import LossWatch, find


def of_mixed(losses: list[float], task: str = "classification") -> list[int]:
    return [one.server_round for one in find(((at, {"mixed": loss}) for at, loss in enumerate(losses, 1)), task)]


@pytest.mark.parametrize(
    ("losses", "task", "since"),
    [
        ([2.3, 1.9, 2e22, 3e22], "classification", [3]),
        ([2e22], "classification", [1]),
        ([2e4, 2e4], "classification", [1]),
        ([0.7, math.inf], "binary", [2]),
        ([4e6, 3e6, 1e10], "regression", [3]),
        ([1e22], "regression", [1]),
        ([0.5, math.nan], "regression", [2]),
    ],
)
def test_a_loss_that_explodes_is_found_once_and_when(losses: list[float], task: str, since: list[int]) -> None:
    assert of_mixed(losses, task) == since


@given(st.lists(st.floats(0, 900), max_size=20))
def test_a_block_that_was_forgotten_is_no_divergence(losses: list[float]) -> None:
    assert of_mixed(losses) == []


@given(st.lists(st.floats(1e6, 9e8), max_size=20))
def test_large_targets_are_no_divergence(losses: list[float]) -> None:
    assert of_mixed(losses, "regression") == []


def test_chains_are_told_apart_and_what_was_not_measured_says_nothing() -> None:
    watch = LossWatch("classification")
    assert watch.see(1, {"mixed": 2.0, "separate": None}) == []
    (found,) = watch.see(2, {"mixed": 2.0, "separate": 1e9})
    assert str(found) == "the separate chain has diverged since round 2: its loss is 1e+09; lower lr-separate"
    (other,) = watch.see(3, {"mixed": 1e9, "separate": 1e9})
    assert (other.chain, other.server_round, str(other)[-8:]) == ("mixed", 3, "lr-mixed")
