"""The convex problem: its gradient, its constants, its optima, and how it is cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perennial.simulation.theory.problem import Problem, Regime, draw, gradient, loss, optimum
from perennial.simulation.theory.study import DIVERSE, FAST, SLOW

SMALL = Regime(name="small", features=3, condition=10.0, convexity=0.1, signal=1.0, block_spread=0.5, client_spread=0.5)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return draw(SMALL, 2)


def test_gradient_is_that_of_finite_differences(problem: Problem) -> None:
    points, targets, step = problem.points[0], problem.blocks(4)[0, 1], 1e-6
    weights = np.random.default_rng(0).normal(size=(3, 3))
    numeric = np.zeros_like(weights)
    for place in np.ndindex(weights.shape):
        shift = np.zeros_like(weights)
        shift[place] = step
        rise = loss(weights + shift, points, targets, 0.1) - loss(weights - shift, points, targets, 0.1)
        numeric[place] = rise / (2.0 * step)
    np.testing.assert_allclose(gradient(weights, points, targets, 0.1), numeric, atol=1e-9)


@pytest.mark.parametrize("regime", [SMALL, SLOW, FAST, DIVERSE], ids=lambda regime: regime.name)
def test_gradient_vanishes_at_the_optimum_of_every_block(regime: Regime) -> None:
    drawn = draw(regime, 1)
    for targets in drawn.blocks(4)[0]:
        best = optimum(drawn.points[0], targets, regime.convexity)
        assert np.linalg.norm(gradient(best, drawn.points[0], targets, regime.convexity)) <= 1e-10


def test_newton_says_when_it_cannot_reach_the_tolerance(problem: Problem) -> None:
    with pytest.raises(ArithmeticError, match="gradient of norm"):
        optimum(problem.points[0], problem.blocks(1)[0, 0], 0.1, tolerance=0.0)


@pytest.mark.parametrize("blocks", [1, 2, 16])
def test_global_loss_is_the_mean_over_blocks_and_clients_however_they_are_cut(problem: Problem, blocks: int) -> None:
    weights = np.random.default_rng(1).normal(size=(3, 3))
    whole = loss(weights, problem.points, problem.blocks(1)[:, 0], 0.1)
    points, targets = problem.shards(blocks, 8)
    parts = loss(weights, points[:, None], targets, 0.1)
    assert parts.shape == (2, blocks, 8)
    np.testing.assert_allclose(parts.mean(axis=(1, 2)), whole, rtol=1e-13)


def test_strong_convexity_and_smoothness_hold_for_every_client(problem: Problem) -> None:
    rng = np.random.default_rng(2)
    points, targets = problem.shards(4, 8)
    top = problem.smoothness(8)
    for _ in range(20):
        here, there = rng.normal(size=(2, 3, 3)) * 2.0
        slope = gradient(here, points[:, None], targets, 0.1)
        rise = loss(there, points[:, None], targets, 0.1) - loss(here, points[:, None], targets, 0.1)
        beyond = rise - (slope * (there - here)).sum(axis=(-1, -2))
        half = 0.5 * ((there - here) ** 2).sum()
        assert (beyond >= 0.1 * half - 1e-12).all()
        assert (beyond <= top * half + 1e-12).all()


def test_variance_of_a_drawn_gradient_is_within_its_bound(problem: Problem) -> None:
    points, targets = problem.shards(4, 8)
    weights = np.random.default_rng(3).normal(size=(3, 3)) * 3.0
    every = np.stack(
        [gradient(weights, points[0, 5, [row]], np.eye(3)[[label]], 0.1) for row in range(16) for label in range(3)]
    )
    chance = targets[0, 2, 5].ravel() / 16.0
    mean = gradient(weights, points[0, 5], targets[0, 2, 5], 0.1)
    np.testing.assert_allclose(np.einsum("a,adk->dk", chance, every), mean, atol=1e-12)
    assert chance @ ((every - mean) ** 2).sum(axis=(1, 2)) <= problem.variance(8)


def test_blocks_without_spread_are_all_the_same_and_clients_still_differ() -> None:
    alike = draw(replace(SMALL, block_spread=0.0), 1)
    targets = alike.blocks(16)[0]
    np.testing.assert_array_equal(targets, np.broadcast_to(targets[0], targets.shape))
    points, shares = alike.shards(1, 4)
    best = [optimum(points[0, client], shares[0, 0, client], 0.1) for client in range(4)]
    assert min(np.linalg.norm(best[0] - other) for other in best[1:]) > 0.1


def test_a_seed_is_the_same_among_any_number_of_seeds(problem: Problem) -> None:
    np.testing.assert_array_equal(draw(SMALL, 1).points[0], problem.points[0])


@pytest.mark.parametrize(("blocks", "clients", "name"), [(3, 1, "blocks"), (0, 1, "blocks"), (1, 5, "clients")])
def test_what_does_not_cut_evenly_is_refused(problem: Problem, blocks: int, clients: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must divide"):
        problem.shards(blocks, clients)
