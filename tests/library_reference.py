"""Algorithms 1 and 2 written out in NumPy, for least squares, given the nodes of every round. Shares no code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# data[block][node] is (x, y); a model is one vector, its last number the bias.
Data = list[list[tuple[Any, Any]]]


@dataclass
class Run:
    """A setting: block and cohort of every round, in order."""

    data: Data
    blocks: list[int]
    cohorts: list[list[int]]
    steps: int
    lr: float
    lr_separate: float = 0.0


def gradient(model: Any, x: Any, y: Any) -> Any:
    error = x @ model[:-1] + model[-1] - y
    return np.append(error @ x, error.sum()) * 2 / len(y)


def loss(model: Any, x: Any, y: Any) -> float:
    return float(((x @ model[:-1] + model[-1] - y) ** 2).mean())


def mean_of(values: list[Any], shards: list[tuple[Any, Any]]) -> Any:
    weights = np.array([len(y) for _, y in shards], float)
    return sum(weight / weights.sum() * value for weight, value in zip(weights, values, strict=True))


def train(model: Any, shards: list[tuple[Any, Any]], steps: int, lr: float) -> Any:
    local = []
    for x, y in shards:
        own = model.copy()
        for _ in range(steps):
            own = own - lr * gradient(own, x, y)
        local.append(own)
    return mean_of(local, shards)


def mm_psgd_mean(run: Run, initial: Any) -> dict[int, Any]:
    """Algorithm 1."""
    model, made = initial.copy(), {}
    for block, cohort in zip(run.blocks, run.cohorts, strict=True):
        model = train(model, [run.data[block][node] for node in cohort], run.steps, run.lr)
        made.setdefault(block, []).append(model)
    return {block: np.mean(models, axis=0) for block, models in made.items()}


def mc_psgd_exponential(run: Run, initial: Any, decay: float) -> tuple[dict[int, Any], list[str]]:
    """Algorithm 2, with the experiments' averaging; returns the predictors and which chain each round chose."""
    mixed, separate, predictors, chosen = initial.copy(), {}, {}, []
    for block, cohort in zip(run.blocks, run.cohorts, strict=True):
        shards = [run.data[block][node] for node in cohort]
        mixed = train(mixed, shards, run.steps, run.lr)
        separate[block] = train(separate.get(block, initial), shards, run.steps, run.lr_separate)
        losses = [mean_of([loss(model, x, y) for x, y in shards], shards) for model in (mixed, separate[block])]
        chosen.append("separate" if losses[1] < losses[0] else "mixed")
        best = separate[block] if chosen[-1] == "separate" else mixed
        predictors[block] = decay * predictors[block] + (1 - decay) * best if block in predictors else best
    return predictors, chosen
