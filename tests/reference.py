"""Algorithms 1 and 2 of the paper, line by line in float64 NumPy, with a softmax regression of its own.

It shares no code with the packages: agreement with it means something. A model is one array of (features + 1,
classes), whose last row is the bias. Data is ``data[block][client] = (x, y)``; every gradient is of the whole shard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Model = NDArray[np.float64]
Shard = tuple[NDArray[np.float32], NDArray[np.int64]]
Data = list[list[Shard]]


@dataclass(frozen=True)
class Setting:
    """The input of the algorithms (line 1), and the schedule that gives t its block."""

    gamma: float
    eta: float
    cycles: int
    rounds_per_block: int
    local_iterations: int
    averaging: str = "mean"
    decay: float = 0.5


@dataclass(frozen=True)
class Outcome:
    """Predictors by block, and of every round which chain won and by how much (empty for Algorithm 1)."""

    predictors: list[Model]
    chosen: list[str]
    margins: list[float]


def softmax_loss(model: Model, shard: Shard) -> tuple[float, Model]:
    """Return the mean cross-entropy on a shard and its gradient."""
    x, y = shard
    features = np.hstack([x.reshape(len(x), -1).astype(np.float64), np.ones((len(x), 1))])
    scores = features @ model
    scores -= scores.max(axis=1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    wrong = np.exp(logs)
    wrong[np.arange(len(y)), y] -= 1.0
    return float(-logs[np.arange(len(y)), y].mean()), features.T @ wrong / len(y)


def fedavg(data: Data, classes: int, setting: Setting) -> Outcome:
    """Return the mixed chain's last model for every block."""
    last = [_zeros(data, classes)] * len(data)

    def keep(x_bar: Model, block: int) -> None:
        last[:] = [x_bar] * len(data)

    _algorithm_1(data, classes, setting, keep)
    return Outcome(last, [], [])


def mm_psgd(data: Data, classes: int, setting: Setting) -> Outcome:
    """Algorithm 1."""
    predictors = [_zeros(data, classes) for _ in data]
    existing_rounds = [0] * len(data)

    def update(x_bar: Model, m: int) -> None:
        predictors[m] = _averaged(predictors[m], x_bar, existing_rounds[m], setting)  # lines 7 and 8
        existing_rounds[m] += 1

    _algorithm_1(data, classes, setting, update)
    return Outcome(predictors, [], [])


def _algorithm_1(data: Data, classes: int, setting: Setting, server: Callable[[Model, int], None]) -> None:
    clients = range(len(data[0]))
    x = [_zeros(data, classes) for _ in clients]  # line 2
    # The initial model counts as x_0, so that every round has I steps, as the text says; t = 0 only takes the first.
    for t in range(_total(data, setting) + 1):  # line 3
        if t > 0 and t % setting.local_iterations == 0:  # line 4
            x_bar = sum(x[i] for i in clients) / len(clients)  # line 5
            server(x_bar, _block_of_round(t // setting.local_iterations, data, setting))  # lines 6 to 8
            x = [x_bar.copy() for _ in clients]  # line 9
        if t == _total(data, setting):
            return
        m = _block_of_round(t // setting.local_iterations + 1, data, setting)
        for i in clients:
            x[i] = x[i] - setting.gamma * softmax_loss(x[i], data[m][i])[1]  # lines 11 and 12


def mc_psgd(data: Data, classes: int, setting: Setting) -> Outcome:
    """Algorithm 2."""
    clients = range(len(data[0]))
    u = [_zeros(data, classes) for _ in data]  # line 2
    w = [_zeros(data, classes) for _ in data]
    x = [_zeros(data, classes) for _ in clients]
    y = [_zeros(data, classes) for _ in clients]
    existing_rounds = [0] * len(data)
    chosen, margins = [], []
    for t in range(_total(data, setting) + 1):  # line 3; x_0 as in Algorithm 1
        if t > 0 and t % setting.local_iterations == 0:  # line 4
            this_round = t // setting.local_iterations
            m = _block_of_round(this_round, data, setting)  # line 5
            x_bar = sum(x[i] for i in clients) / len(clients)  # line 6
            y_bar = sum(y[i] for i in clients) / len(clients)  # line 7
            w[m] = y_bar
            x, y = [x_bar.copy() for _ in clients], [y_bar.copy() for _ in clients]  # line 8
            loss_x = sum(softmax_loss(x_bar, data[m][i])[0] for i in clients) / len(clients)  # line 9
            loss_y = sum(softmax_loss(y_bar, data[m][i])[0] for i in clients) / len(clients)
            u_bar = y_bar if loss_y < loss_x else x_bar  # line 10
            chosen.append("separate" if loss_y < loss_x else "mixed")
            margins.append(abs(loss_x - loss_y))
            u[m] = _averaged(u[m], u_bar, existing_rounds[m], setting)  # lines 11 and 12
            existing_rounds[m] += 1
            if t == _total(data, setting):
                break
            m_1 = _block_of_round(this_round + 1, data, setting)  # line 14
            if m_1 != m:  # line 13
                y = [w[m_1].copy() for _ in clients]  # line 15
        m = _block_of_round(t // setting.local_iterations + 1, data, setting)
        for i in clients:  # line 18
            x[i] = x[i] - setting.gamma * softmax_loss(x[i], data[m][i])[1]
            y[i] = y[i] - setting.eta * softmax_loss(y[i], data[m][i])[1]
    return Outcome(u, chosen, margins)


ALGORITHMS = {"fedavg": fedavg, "mm-psgd": mm_psgd, "mc-psgd": mc_psgd}


def _averaged(predictor: Model, model: Model, r: int, setting: Setting) -> Model:
    """The running mean of line 8 (12 in Algorithm 2), or the experiments' exponential average."""
    if setting.averaging == "mean":
        return r / (r + 1) * predictor + 1 / (r + 1) * model
    return model if r == 0 else setting.decay * predictor + (1 - setting.decay) * model


def _zeros(data: Data, classes: int) -> Model:
    return np.zeros((int(np.prod(data[0][0][0].shape[1:])) + 1, classes))


def _total(data: Data, setting: Setting) -> int:
    """T: iterations of all cycles."""
    return setting.cycles * len(data) * setting.rounds_per_block * setting.local_iterations


def _block_of_round(number: int, data: Data, setting: Setting) -> int:
    """Rounds are numbered from 1; E of them fall into block 0, the next E into block 1, and so on round the cycle."""
    return (number - 1) // setting.rounds_per_block % len(data)
