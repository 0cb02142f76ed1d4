"""The predictors that follow from which clients each round accepted, by the gradients of tests/reference.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.reference import Data, Model, softmax_loss


def replayed(
    rows: list[dict[str, Any]], data: Data, classes: int, *, gamma: float, eta: float, steps: int
) -> list[Model]:
    """Return each block's predictor (Algorithm 2, exponential with decay 0.5), if ``accepted`` of each row is true.

    Which chain a round chose is taken from its row, and must be the one of the smaller loss in that row.
    """
    zero = np.zeros((int(np.prod(data[0][0][0].shape[1:])) + 1, classes))
    x_bar, w, u = zero, [zero] * len(data), [zero] * len(data)
    folded = [0] * len(data)
    for row in rows:
        m = row["block"]
        shards = [data[m][client] for client in row["accepted"]]
        x_bar = sum(_trained(x_bar, shard, gamma, steps) for shard in shards) / len(shards)
        w[m] = sum(_trained(w[m], shard, eta, steps) for shard in shards) / len(shards)
        assert row["chosen"] == ("separate" if row["loss-separate"] < row["loss-mixed"] else "mixed"), row
        u_bar = w[m] if row["chosen"] == "separate" else x_bar
        u[m] = 0.5 * u[m] + 0.5 * u_bar if folded[m] else u_bar
        folded[m] += 1
    return u


def _trained(model: Model, shard: Any, rate: float, steps: int) -> Model:
    for _ in range(steps):
        model = model - rate * softmax_loss(model, shard)[1]
    return model
