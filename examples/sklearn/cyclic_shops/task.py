"""Shops whose customers differ by the day: the data, and a logistic regression by scikit-learn."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

BLOCKS = ("weekday", "weekend")
FEATURES = 6
SHOPS = 8
Data = tuple[NDArray[np.float64], NDArray[np.int64]]


def initial() -> ArrayRecord:
    """Return the model that training starts from: all weights zero."""
    return ArrayRecord({"weights": Array(np.zeros((1, FEATURES))), "bias": Array(np.zeros(1))})


def load(block: int, shop: int, examples: int = 60) -> Data:
    """Return a shop's customers in a block, and who of them bought.

    At the weekend two of the six habits mean the opposite of what they mean in the week.
    """
    rng = np.random.default_rng([shop, block])
    habits = np.array([2.0, -1.5, 1.0, 0.5, 2.0, -2.0])
    habits[4:] *= -1 if block else 1
    customers = rng.normal(size=(examples, FEATURES))
    bought = rng.random(examples) < 1 / (1 + np.exp(-customers @ habits))
    return customers, bought.astype(np.int64)


def opened(arrays: ArrayRecord, learning_rate: float = 0.05) -> SGDClassifier:
    """Return the classifier that has the weights of a message."""
    model = SGDClassifier(loss="log_loss", alpha=1e-4, learning_rate="constant", eta0=learning_rate, random_state=0)
    model.classes_ = np.array([0, 1])
    model.coef_, model.intercept_ = (arrays[name].numpy().copy() for name in ("weights", "bias"))
    return model


def closed(model: SGDClassifier) -> ArrayRecord:
    """Return the weights of a classifier as they are sent."""
    return ArrayRecord({"weights": Array(model.coef_), "bias": Array(model.intercept_)})


def test(model: SGDClassifier, data: Data) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    customers, bought = data
    return log_loss(bought, model.predict_proba(customers), labels=[0, 1]), float(model.score(customers, bought))
