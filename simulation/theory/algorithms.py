"""Algorithms 1 and 2 in float64, all seeds and clients of a run at once; server/psgd.py has the same for one seed.

Shapes: S seeds, N clients, d features, k classes, H chains (mixed, then separate); models are (d, k, H, S N), the
long axis last, so that numpy's loops run over clients and not over classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perennial.common.cycle.schedule import RoundSchedule
from perennial.common.wire.seeding import generator
from perennial.simulation.theory.problem import Floats, Problem
from perennial.simulation.theory.rates import Plan

ITERATIONS_AT_ONCE = 256


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: by chain, a block's predictors and the mean of F_m over the block's rounds.

    Chains are "mixed" (MM-PSGD's), "separate" and "chosen" (MC-PSGD's); in a run of one chain all are the mixed one.
    """

    predictors: dict[str, Floats]  # x_tilde_m, the same of y_bar, u_tilde_m: (S, M, d, k)
    path: dict[str, Floats]  # (S, M)
    last: Floats  # x_bar_T, FedAvg's model: (S, d, k)
    separate_share: Floats  # rounds won by the separate chain: (S, M)


def run(problem: Problem, plan: Plan, chains: int) -> Outcome:
    """Run MM-PSGD (``chains=1``, Algorithm 1) or MC-PSGD (``chains=2``, Algorithm 2) from zero weights.

    Both chains see the same draws; a seed's draws do not depend on which other seeds run.
    """
    sampler, judge, folds = _Sampler(problem, plan), _Judge(problem, plan.blocks), _Folds(problem, plan)
    seeds, (width, classes) = problem.seeds, (problem.points.shape[-1], problem.targets.shape[-1])
    steps = np.array([plan.gamma, plan.eta])[:chains, None]
    models = np.zeros((width, classes, chains, seeds * plan.clients))
    weights = np.full(plan.clients, 1.0 / plan.clients)
    separate = np.zeros((plan.blocks, width, classes, seeds))
    schedule = RoundSchedule(plan.blocks, plan.rounds_per_block, plan.cycles)
    slot = schedule.after(None)
    while slot is not None:
        if slot.round_in_block == 0:
            batches = sampler.visit(slot.block)
            if chains == 2:
                models[:, :, 1] = np.repeat(separate[slot.block], plan.clients, axis=-1)
        for _ in range(plan.local_iterations):
            _descend(models, *next(batches), steps, problem.convexity)
        average = models.reshape(width, classes, chains, seeds, plan.clients) @ weights
        models = np.repeat(average, plan.clients, axis=-1)
        folds.add(slot.block, average, judge.losses(slot.block, average))
        separate[slot.block] = average[:, :, -1]
        slot = schedule.after(slot)
    return folds.outcome(average[:, :, 0])


def _descend(models: Floats, points: Floats, labels: Floats, steps: Floats, convexity: float) -> None:
    """One local iteration of every client, in place: points (d, S N), one-hot labels (k, S N), steps (H, 1)."""
    logits = np.einsum("dkhn,dn->khn", models, points)
    logits -= logits.max(axis=0)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=0)
    logits -= labels[:, None]
    logits *= steps
    models *= 1.0 - steps * convexity
    models -= logits[None] * points[:, None, None]


class _Sampler:
    """Draws of every client: a point of its shard, and a class from that point's probabilities."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        points, targets = problem.shards(plan.blocks, plan.clients)
        self._shard = points.shape[2]
        self._points = points.transpose(3, 0, 1, 2).reshape(points.shape[3], -1).copy()  # (d, S N n)
        bounds = np.cumsum(targets, axis=-1).transpose(1, 4, 0, 2, 3).reshape(plan.blocks, targets.shape[4], -1).copy()
        bounds[:, -1] = 1.0  # rounding must not leave a draw without a class
        self._bounds = bounds  # (M, k, S N n)
        self._rngs = [generator(seed, "theory-draws") for seed in range(problem.seeds)]
        self._plan = plan

    def visit(self, block: int) -> Iterator[tuple[Floats, Floats]]:
        """Yield points (d, S N) and one-hot labels (k, S N) of the K iterations of one stay in a block."""
        left = self._plan.block_iterations
        first = np.arange(len(self._rngs) * self._plan.clients) * self._shard
        while left:
            count = min(left, ITERATIONS_AT_ONCE)
            left -= count
            uniforms = np.concatenate([rng.random((count, 2, self._plan.clients)) for rng in self._rngs], axis=2)
            rows = first + (uniforms[:, 0] * self._shard).astype(np.int64)
            points = self._points[:, rows].swapaxes(0, 1)
            below = uniforms[:, 1] < self._bounds[block][:, rows]
            labels = np.diff(below.astype(np.float64), axis=0, prepend=0.0).swapaxes(0, 1)
            yield from zip(np.ascontiguousarray(points), np.ascontiguousarray(labels), strict=True)


class _Judge:
    """F_m of models of all seeds. The terms that are linear in a model come from one vector a block."""

    def __init__(self, problem: Problem, blocks: int) -> None:
        targets = problem.blocks(blocks)
        self._points = problem.points.swapaxes(1, 2).copy()  # (S, d, Q)
        linear = targets.swapaxes(-1, -2) @ problem.points[:, None] / problem.points.shape[1]
        self._linear = linear.swapaxes(0, 1).copy()  # (M, S, k, d)
        self._convexity = problem.convexity

    def losses(self, block: int, models: Floats) -> Floats:
        """Return F_m (H, S) of models (d, k, H, S)."""
        width, classes, chains, seeds = models.shape
        stacked = models.transpose(3, 2, 1, 0).reshape(seeds, chains * classes, width)
        logits = (stacked @ self._points).reshape(seeds, chains, classes, -1)
        # Weights stay small enough here for exp without a shift; a run that diverged shows as inf.
        normaliser = np.log(np.exp(logits).sum(axis=2)).mean(axis=-1)
        linear = (stacked.reshape(seeds, chains, classes, width) * self._linear[block][:, None]).sum(axis=(2, 3))
        square = (stacked**2).reshape(seeds, chains, -1).sum(axis=-1)
        value: Floats = (normaliser - linear + 0.5 * self._convexity * square).T
        return value


class _Folds:
    """Running means over each block's rounds, of x_bar, y_bar and u_bar and of their losses."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        shape = (problem.points.shape[-1], problem.targets.shape[-1], 3, problem.seeds)
        self._models = np.zeros((plan.blocks, *shape))
        self._losses = np.zeros((plan.blocks, 3, problem.seeds))
        self._won = np.zeros((plan.blocks, problem.seeds))
        self._folded = [0] * plan.blocks

    def add(self, block: int, models: Floats, losses: Floats) -> None:
        """Fold models (d, k, H, S) with losses (H, S) (Algorithm 1, line 8; Algorithm 2, lines 10 to 12)."""
        won = losses[-1] < losses[0]  # a tie goes to the mixed chain
        mixed, separate = models[:, :, 0], models[:, :, -1]
        share = 1.0 / (self._folded[block] + 1)
        made = np.stack([mixed, separate, np.where(won, separate, mixed)], axis=2)
        self._models[block] += (made - self._models[block]) * share
        self._losses[block] += (np.stack([losses[0], losses[-1], losses.min(axis=0)]) - self._losses[block]) * share
        self._won[block] += (won - self._won[block]) * share
        self._folded[block] += 1

    def outcome(self, last: Floats) -> Outcome:
        """Return what the run leaves, its last mixed model being (d, k, S)."""
        predictors, path = self._models.transpose(3, 4, 0, 1, 2), self._losses.transpose(1, 2, 0)
        names = ("mixed", "separate", "chosen")
        return Outcome(
            dict(zip(names, predictors, strict=True)),
            dict(zip(names, path, strict=True)),
            last.transpose(2, 0, 1),
            self._won.T,
        )
