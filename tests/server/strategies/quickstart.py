"""A Flower app written as Flower's quickstart is, with NumPy in the place of torch; it knows nothing of Perennial."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

STEPS = 4


def load_data(partition: int, block: int) -> tuple[Any, Any]:
    """Return a client's data of a block: blocks share a part of their rule."""
    rng = np.random.default_rng([11, partition, block])
    x = rng.normal(size=(6 + 2 * partition, 3)).astype(np.float32)
    rule = np.array([1.0, -1.0, 0.5]) + 0.4 * np.random.default_rng(block).normal(size=3)
    return x, (x @ rule + 0.3 * block + 0.05 * rng.normal(size=len(x))).astype(np.float32)


def initial_arrays() -> ArrayRecord:
    weights = {"fc.weight": np.array([0.1, 0.2, 0.3], np.float32), "fc.bias": np.zeros((), np.float32)}
    return ArrayRecord({name: Array(one) for name, one in weights.items()})


def _model(message: Message) -> tuple[Any, Any]:
    arrays = message.content["arrays"]
    return arrays["fc.weight"].numpy(), arrays["fc.bias"].numpy()


def _config(message: Message) -> ConfigRecord:
    return message.content.config_records["config"]


def make_app(**options: Any) -> ClientApp:
    app = ClientApp()

    @app.train(**options)
    def train(message: Message, context: Context) -> Message:
        weight, bias = _model(message)
        partition, config = int(context.node_config["partition-id"]), _config(message)
        x, y = load_data(partition, int(str(config["block"])))
        lr = np.float32(str(config["lr"]))
        for _ in range(STEPS):
            error = 2 * (x @ weight + bias - y) / np.float32(len(y))
            weight, bias = weight - lr * (error @ x), bias - lr * error.sum()
        arrays = {"fc.weight": Array(np.asarray(weight, np.float32)), "fc.bias": Array(np.asarray(bias, np.float32))}
        metrics = {"train_loss": float((error**2).mean()), "num-examples": len(y), "partition": partition}
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)}
        return Message(content=RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        weight, bias = _model(message)
        x, y = load_data(int(context.node_config["partition-id"]), int(str(_config(message)["block"])))
        loss = float(((x @ weight + bias - y) ** 2).mean())
        metrics = MetricRecord({"eval_loss": loss, "eval_acc": 0.5, "num-examples": len(y)})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app
