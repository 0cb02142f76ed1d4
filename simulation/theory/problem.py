"""Softmax regression with L2 on block-cyclic data: F, F_m and F_m^i known exactly, and their optima.

Shapes: S seeds, Q points of a seed, M blocks, N clients, n points of a shard, d features, k classes.

Blocks differ in the class probabilities that points have, clients also in their points. An iteration draws a point of
the client's shard and then a class from its probabilities in the block. The expectation of the loss over both is a
finite sum, so no loss here has sampling error; and the same data are cut into any number of blocks and clients, so
that F changes with neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perennial.common.wire.seeding import generator

Floats = NDArray[np.float64]
FINEST_BLOCKS, FINEST_CLIENTS, POINTS_OF_A_CLIENT = 16, 32, 4


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What kind of problem is drawn."""

    name: str
    features: int = 16
    classes: int = 3
    condition: float  # largest over smallest variance of a feature; log-uniform between
    convexity: float  # mu
    signal: float  # size of the weights that all blocks share
    block_spread: float  # size of a block's own weights
    client_spread: float  # size of a client's own weights


@dataclass(frozen=True)
class Problem:
    """Drawn data: points in the order of the finest clients, and their class probabilities in the finest blocks."""

    points: Floats  # (S, Q, d)
    targets: Floats  # (S, FINEST_BLOCKS, Q, k)
    convexity: float  # mu

    @property
    def seeds(self) -> int:
        return len(self.points)

    def blocks(self, blocks: int) -> Floats:
        """Return the class probabilities in each of M blocks (S, M, Q, k): F_m is the loss of the points with these.

        The loss is linear in them, so a block of several finest ones has their mean.
        """
        _require_divisor("blocks", blocks, FINEST_BLOCKS)
        seeds, _, points, classes = self.targets.shape
        means: Floats = self.targets.reshape(seeds, blocks, -1, points, classes).mean(axis=2)
        return means

    def shards(self, blocks: int, clients: int) -> tuple[Floats, Floats]:
        """Return the clients' points (S, N, n, d) and their probabilities in every block (S, M, N, n, k)."""
        _require_divisor("clients", clients, FINEST_CLIENTS)
        seeds, _, width = self.points.shape
        targets = self.blocks(blocks)
        points = self.points.reshape(seeds, clients, -1, width)
        return points, targets.reshape(seeds, blocks, clients, -1, targets.shape[-1])

    def smoothness(self, clients: int) -> float:
        """Return L: no F_m^i of any seed curves more, as a softmax's Hessian is at most half the identity."""
        points, _ = self.shards(1, clients)
        covariance = points.swapaxes(-1, -2) @ points / points.shape[-2]
        return 0.5 * float(np.linalg.eigvalsh(covariance)[..., -1].max()) + self.convexity

    def variance(self, clients: int) -> float:
        """Return a bound on sigma^2: a gradient is (p - e_y) x^T plus what no draw changes, and |p - e_y|^2 <= 2."""
        points, _ = self.shards(1, clients)
        return 2.0 * float((points**2).sum(axis=-1).mean(axis=-1).max())


def draw(regime: Regime, seeds: int) -> Problem:
    """Return the problems of the seeds 0 … seeds - 1."""
    drawn = [_draw(regime, seed) for seed in range(seeds)]
    points, targets = (np.stack(arrays) for arrays in zip(*drawn, strict=True))
    return Problem(points, targets, regime.convexity)


def _draw(regime: Regime, seed: int) -> tuple[Floats, Floats]:
    rng = generator(seed, f"theory-{regime.name}")
    shape = (regime.features, regime.classes)
    unit = rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), (FINEST_CLIENTS * POINTS_OF_A_CLIENT, regime.features))
    # Clients differ in what they see, too: a client's points are, but for noise, a range of the first feature.
    unit = unit[np.argsort(unit[:, 0] + rng.normal(size=len(unit)))]
    points = unit * np.geomspace(1.0, regime.condition**-0.5, regime.features)
    clients = np.repeat(_circle(rng, FINEST_CLIENTS, shape), POINTS_OF_A_CLIENT, axis=0)
    weights = (
        regime.signal * rng.normal(size=shape)
        + regime.block_spread * _circle(rng, FINEST_BLOCKS, shape)[:, None]
        + regime.client_spread * clients[None]
    )
    return points, softmax(np.einsum("qd,bqdk->bqk", points, weights))


def _circle(rng: np.random.Generator, count: int, shape: tuple[int, int]) -> Floats:
    """Return weights (count, d, k) on a circle around zero: neighbours are alike, and all of them average to zero."""
    angle = 2.0 * np.pi * np.arange(count)[:, None, None] / count
    circle: Floats = np.cos(angle) * rng.normal(size=shape) + np.sin(angle) * rng.normal(size=shape)
    return circle


def _require_divisor(name: str, count: int, finest: int) -> None:
    if count < 1 or finest % count:
        raise ValueError(f"{name} must divide {finest}, got {count}")


def softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    normal: Floats = shifted / shifted.sum(axis=-1, keepdims=True)
    return normal


def loss(weights: Floats, points: Floats, targets: Floats, convexity: float) -> Floats:
    """Return the regularised cross-entropy (...) of weights (..., d, k) on points (..., n, d), targets (..., n, k)."""
    logits = points @ weights
    top = logits.max(axis=-1)
    normaliser = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
    entropy = (normaliser - (targets * logits).sum(axis=-1)).mean(axis=-1)
    value: Floats = entropy + 0.5 * convexity * (weights**2).sum(axis=(-1, -2))
    return value


def gradient(weights: Floats, points: Floats, targets: Floats, convexity: float) -> Floats:
    """Return the gradient (..., d, k) of ``loss``."""
    residual = softmax(points @ weights) - targets
    slope: Floats = points.swapaxes(-1, -2) @ residual / points.shape[-2] + convexity * weights
    return slope


def optimum(points: Floats, targets: Floats, convexity: float, tolerance: float = 1e-10) -> Floats:
    """Return the minimiser (d, k) of ``loss`` on points (n, d), by Newton's method with halved steps.

    The gradient's norm is at most ``tolerance``, hence the excess loss at most tolerance^2 / (2 mu).
    """
    weights = np.zeros((points.shape[1], targets.shape[1]))
    for _ in range(100):
        slope = gradient(weights, points, targets, convexity)
        if np.linalg.norm(slope) <= tolerance:
            return weights
        solved = np.linalg.solve(_hessian(weights, points, convexity), slope.ravel())
        direction = np.asarray(solved, np.float64).reshape(slope.shape)
        weights = weights - _step_length(weights, direction, slope, points, targets, convexity) * direction
    raise ArithmeticError(f"Newton's method ended at a gradient of norm {np.linalg.norm(slope)}, not {tolerance}")


def _step_length(
    weights: Floats, direction: Floats, slope: Floats, points: Floats, targets: Floats, convexity: float
) -> float:
    start, gain, length = loss(weights, points, targets, convexity), float((slope * direction).sum()), 1.0
    # Below rounding of the loss itself no decrease can be seen; there Newton's full step is right.
    while gain > 1e-12 and loss(weights - length * direction, points, targets, convexity) > start - 0.1 * length * gain:
        length /= 2.0
    return length


def _hessian(weights: Floats, points: Floats, convexity: float) -> Floats:
    """Return the Hessian (d k, d k) of ``loss``."""
    chance = softmax(points @ weights)
    spread = chance[:, :, None] * (np.eye(chance.shape[1]) - chance[:, None, :])
    size = weights.size
    curvature = np.einsum("nkl,nd,ne->dkel", spread, points, points, optimize=True).reshape(size, size) / len(points)
    hessian: Floats = curvature + convexity * np.eye(size)
    return hessian
