"""A client on NumPy alone, and nodes in memory that run it: for examples and tests.

>>> from perennial.example import example_arrays, example_grid
>>> from flwr.serverapp.strategy import FedAvg
>>> result = FedAvg().start(example_grid(nodes=4), example_arrays(), num_rounds=2)
>>> list(result.arrays)
['weight', 'bias']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from perennial.server.link.memory_grid import MemoryGrid


def example_app(block_of: Callable[[ConfigRecord], int] | None = None, mods: Sequence[Any] = ()) -> ClientApp:
    """Return a client as a quickstart's, on NumPy alone: least squares on data that depends on node and block."""
    app = ClientApp()
    block_of = block_of or (lambda config: int(str(config.get("block", 0))))

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        config = message.content.config_records["config"]
        x, y = _data(context.node_id, block_of(config))
        arrays = message.content.array_records["arrays"]
        weight, bias = (arrays[name].numpy() for name in ("weight", "bias"))
        for _ in range(3):
            error = x @ weight + bias - y
            lr = np.float32(str(config.get("lr", 0.1)))
            weight, bias = weight - lr * (error @ x) / len(x), bias - lr * error.mean()
        model = {"weight": Array(weight.astype(np.float32)), "bias": Array(np.asarray(bias, np.float32))}
        metrics = MetricRecord({"num-examples": len(x), "train_loss": float((error**2).mean())})
        return Message(RecordDict({"arrays": ArrayRecord(model), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        x, y = _data(context.node_id, block_of(message.content.config_records["config"]))
        arrays = message.content.array_records["arrays"]
        error = x @ arrays["weight"].numpy() + arrays["bias"].numpy() - y
        metrics = MetricRecord({"num-examples": len(x), "eval_loss": float((error**2).mean())})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def example_arrays() -> ArrayRecord:
    """Return the model that ``example_app`` trains, of zeros."""
    return ArrayRecord({"weight": Array(np.zeros(3, np.float32)), "bias": Array(np.zeros((), np.float32))})


def example_grid(nodes: int = 10) -> MemoryGrid:
    """Return a grid of nodes that run ``example_app`` in this process."""
    return MemoryGrid(example_app(), nodes)


def _data(node: int, block: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([node, block])
    x = rng.normal(size=(4 + node % 5, 3))
    y = x @ np.roll([1.0, -2.0, 3.0], block) + 0.1 * rng.normal(size=len(x))
    return x.astype(np.float32), y.astype(np.float32)
