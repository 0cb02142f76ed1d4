"""The vectorised chains against ``perennial.server.psgd``, one client at a time."""

from __future__ import annotations

import numpy as np
import pytest

from perennial.common.cycle.schedule import RoundSchedule
from perennial.common.wire.chains import Vector
from perennial.common.wire.seeding import generator
from perennial.server import psgd
from perennial.server.exact import ExactMean
from perennial.simulation.theory.algorithms import run
from perennial.simulation.theory.problem import Floats, Problem, Regime, draw, gradient, loss
from perennial.simulation.theory.rates import Plan

REGIME = Regime(
    name="replay", features=3, condition=4.0, convexity=0.05, signal=1.0, block_spread=1.5, client_spread=0.5
)
PLAN = Plan(clients=4, blocks=2, cycles=2, rounds_per_block=5, local_iterations=3, gamma=0.3, eta=0.5)


def local(model: Vector, points: Floats, targets: Floats, draws: Floats, step: float) -> Vector:
    """One client's iterations; draws (I, 2): which point, which class."""
    weights = model.astype(np.float64).reshape(3, 3)
    for which, what in draws:
        row = int(which * len(points))
        label = int((what >= np.cumsum(targets[row])[:-1]).sum())
        weights = weights - step * gradient(weights, points[[row]], np.eye(3)[[label]], REGIME.convexity)
    return weights.ravel().astype(np.float32)


def folded_in(predictors: list[Vector], folded: list[int], block: int, model: Vector) -> None:
    whole = {"w": np.dtype(np.float32)}
    predictors[block] = psgd.fold({"w": predictors[block]}, {"w": model}, folded[block], None, whole)["w"]
    folded[block] += 1


def mean(models: list[Vector]) -> Vector:
    made = ExactMean()
    for model in models:
        made.add(model, 1)
    return made.mean()


def replay(problem: Problem, seed: int) -> tuple[Vector, list[Vector], list[Vector], list[str]]:
    """MC-PSGD and MM-PSGD of one seed by ``perennial.server.psgd`` and ``exact`` alone."""
    points, targets = (array[seed] for array in problem.shards(PLAN.blocks, PLAN.clients))
    whole, rng = problem.blocks(PLAN.blocks)[seed], generator(seed, "theory-draws")
    zero = np.zeros(9, np.float32)
    head, separate = zero, [zero] * PLAN.blocks
    (chosen, r_chosen), (mixed, r_mixed) = (([zero] * PLAN.blocks, [0] * PLAN.blocks) for _ in range(2))
    votes = []
    schedule = RoundSchedule(PLAN.blocks, PLAN.rounds_per_block, PLAN.cycles)
    slot = schedule.after(None)
    while slot is not None:
        block, draws = slot.block, rng.random((PLAN.local_iterations, 2, PLAN.clients))
        shards = [(points[i], targets[block, i], draws[:, :, i]) for i in range(PLAN.clients)]
        x = mean([local(head, *shard, PLAN.gamma) for shard in shards])
        y = mean([local(separate[block], *shard, PLAN.eta) for shard in shards])
        head, separate[block] = x, y
        losses = [
            float(loss(model.astype(np.float64).reshape(3, 3), problem.points[seed], whole[block], REGIME.convexity))
            for model in (x, y)
        ]
        votes.append(psgd.choose(*losses))
        folded_in(chosen, r_chosen, block, x if votes[-1] == psgd.MIXED else y)
        folded_in(mixed, r_mixed, block, x)
        slot = schedule.after(slot)
    return head, mixed, chosen, votes


@pytest.mark.parametrize("seed", [0, 1])
def test_chains_and_predictors_are_those_of_psgd(seed: int) -> None:
    problem = draw(REGIME, 2)
    outcome = run(problem, PLAN, 2)
    head, mixed, chosen, votes = replay(problem, seed)
    assert set(votes) == {psgd.MIXED, psgd.SEPARATE}
    for of, predictors in (("mixed", mixed), ("chosen", chosen)):
        np.testing.assert_allclose(outcome.predictors[of][seed].reshape(2, 9), predictors, atol=2e-6)
    np.testing.assert_allclose(outcome.last[seed].ravel(), head, atol=2e-6)
    assert outcome.separate_share[seed].mean() == pytest.approx(votes.count(psgd.SEPARATE) / len(votes))


def test_one_chain_is_the_mixed_chain_of_two() -> None:
    problem = draw(REGIME, 2)
    one, two = run(problem, PLAN, 1), run(problem, PLAN, 2)
    np.testing.assert_allclose(one.predictors["mixed"], two.predictors["mixed"], rtol=1e-12)
    np.testing.assert_allclose(one.path["mixed"], two.path["mixed"], rtol=1e-12)
    np.testing.assert_array_equal(one.separate_share, 0.0)


def test_a_seed_runs_the_same_whoever_runs_beside_it() -> None:
    alone, beside = run(draw(REGIME, 1), PLAN, 2), run(draw(REGIME, 3), PLAN, 2)
    np.testing.assert_allclose(alone.predictors["chosen"][0], beside.predictors["chosen"][0], rtol=1e-12)


def test_the_chosen_path_is_at_most_either_chains_as_lemma_8_says() -> None:
    path = run(draw(REGIME, 3), PLAN, 2).path
    assert (path["chosen"] <= np.minimum(path["mixed"], path["separate"]) + 1e-15).all()


def test_averaging_loses_nothing_as_convexity_says() -> None:
    problem = draw(REGIME, 3)
    outcome = run(problem, PLAN, 2)
    for of, models in outcome.predictors.items():
        value = loss(models, problem.points[:, None], problem.blocks(2), REGIME.convexity)
        assert (value <= outcome.path[of] + 1e-12).all()
