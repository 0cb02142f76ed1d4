"""A client on scikit-learn, written as Flower's quickstart for it: a linear classifier, by its partial_fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

CLASSES = np.array([0, 1])
app = ClientApp()


def initial() -> ArrayRecord:
    return ArrayRecord({"coef": Array(np.zeros((1, 3))), "intercept": Array(np.zeros(1))})


@app.train()
def train(message: Message, context: Context) -> Message:
    model, (x, y) = _model(message), _data(message, context)
    model.partial_fit(x, y, classes=CLASSES)
    arrays = {"coef": Array(model.coef_), "intercept": Array(model.intercept_)}
    metrics = MetricRecord({"num-examples": len(y), "train_loss": _loss(model, x, y)})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, (x, y) = _model(message), _data(message, context)
    metrics = {"num-examples": len(y), "eval_loss": _loss(model, x, y), "eval_acc": float(model.score(x, y))}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def _model(message: Message) -> SGDClassifier:
    arrays, lr = message.content["arrays"], message.content["config"].get("lr", 0.1)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=lr, random_state=0)
    model.classes_ = CLASSES
    # Copies: what arrives may not be written to.
    model.coef_, model.intercept_ = np.array(arrays["coef"].numpy()), np.array(arrays["intercept"].numpy())
    return model


def _loss(model: SGDClassifier, x: Any, y: Any) -> float:
    return float(log_loss(y, model.predict_proba(x), labels=CLASSES))


def _data(message: Message, context: Context) -> tuple[Any, Any]:
    """Return a client's data; by night the second feature says the contrary of what it says by day."""
    block = int(message.content["config"]["block"])
    rng = np.random.default_rng([int(context.node_config["partition-id"]), block])
    x = rng.normal(size=(60, 3))
    return x, (x @ np.array([1.0, 2.0 - 4.0 * block, 0.0]) > 0).astype(int)
