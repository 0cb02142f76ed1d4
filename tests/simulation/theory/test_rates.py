"""The numbers that Theorems 1 and 2 prescribe."""

from __future__ import annotations

import math

import pytest

from perennial.simulation.theory.rates import mixed_step, most_local_iterations, plan, separate_step


@pytest.mark.parametrize(
    ("clients", "iterations", "blocks", "expected"),
    [
        (1, 10_000, 1, 10),
        (1, 9_999, 1, 9),
        (16, 65_536, 1, 2),
        (16, 65_536, 16, 1),
        # T^(1/4) and N^(3/4) are both 2^(15/4): met exactly, where floats fall short.
        (32, 32_768, 1, 1),
        (100, 1_000_000, 1, 1),
    ],
)
def test_local_iterations_are_the_most_that_the_theorem_allows(
    clients: int, iterations: int, blocks: int, expected: int
) -> None:
    assert most_local_iterations(clients, iterations, blocks) == expected
    assert expected <= (iterations / blocks) ** 0.25 / clients**0.75 * (1 + 1e-12) < expected + 1


def test_too_few_iterations_for_one_local_iteration_name_the_bound() -> None:
    with pytest.raises(ValueError, match=r"at least N\^3 M = 2000 .*, got 1999"):
        most_local_iterations(10, 1999, 2)


def test_step_sizes_are_those_of_the_theorems() -> None:
    assert mixed_step(4, 10_000, 0.5) == pytest.approx(0.04, rel=1e-15)
    assert separate_step(4, 10_000, 9, 0.5) == pytest.approx(0.12, rel=1e-15)


@pytest.mark.parametrize("smoothness", [0.0, -1.0, math.nan])
def test_smoothness_must_be_positive(smoothness: float) -> None:
    with pytest.raises(ValueError, match="smoothness must be above 0"):
        mixed_step(1, 1, smoothness)


def test_a_plan_rounds_up_to_whole_rounds_and_takes_its_steps_from_there() -> None:
    made = plan(clients=2, iterations=10_000, blocks=3, cycles=2, smoothness=2.0, chains=1)
    assert (made.local_iterations, made.rounds_per_block) == (5, 334)
    assert (made.block_iterations, made.iterations) == (1670, 10_020)
    assert made.gamma == math.sqrt(2 / 10_020) / 2.0
    assert made.eta == math.sqrt(6 / 10_020) / 2.0


def test_two_chains_take_fewer_local_iterations_by_the_fourth_root_of_blocks() -> None:
    one, two = (
        plan(clients=1, iterations=160_000, blocks=16, cycles=2, smoothness=1.0, chains=chains) for chains in (1, 2)
    )
    assert (one.local_iterations, two.local_iterations) == (20, 10)


@pytest.mark.parametrize("iterations", [4 * 16 * 16, 4 * 16 * 16 + 1, 4096])
def test_a_plan_is_within_every_bound_of_theorem_2_or_refused(iterations: int) -> None:
    settings = {"clients": 4, "blocks": 4, "cycles": 4}
    if iterations <= 1024:
        with pytest.raises(ValueError, match=r"K > C M N = 64 iterations, got 64; raise iterations above .* = 1024"):
            plan(iterations=iterations, smoothness=1.0, chains=2, **settings)
        return
    made = plan(iterations=iterations, smoothness=1.0, chains=2, **settings)
    assert made.iterations >= iterations
    assert made.block_iterations > 64
    assert made.local_iterations**4 * 64 * 4 <= made.iterations


def test_there_are_one_or_two_chains() -> None:
    with pytest.raises(ValueError, match="chains must be 1"):
        plan(clients=1, iterations=100, blocks=1, cycles=1, smoothness=1.0, chains=3)
