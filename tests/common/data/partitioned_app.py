"""A Flower app written as Flower's quickstart is, whose clients load their blocks through TimeBlockPartitioner.

Run in Flower's own simulation; prints how far each block's predictor is off on each block's rule, as JSON.
"""

from __future__ import annotations

import json
import os
import warnings
from datetime import datetime, timedelta
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
from datasets import Dataset
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from perennial import MMPSGD, RoundSchedule
from perennial.partitioners import TimeBlockPartitioner

STATIONS, DAYS = ("Austin", "Clark", "Polk"), 60
# Rides go up with the warmth on weekdays, and down on weekends.
RULES = {"weekday": np.array([2.0, 1.0]), "weekend": np.array([-1.0, 0.5])}


def load_dataset() -> Dataset:
    rng, rows = np.random.default_rng(0), []
    for day in range(DAYS):
        when = datetime(2026, 1, 1, 12) + timedelta(days=day)
        rule = RULES["weekend" if when.weekday() >= 5 else "weekday"]
        for station in STATIONS:
            warmth = float(rng.normal())
            rows.append({"when": when.isoformat(), "station": station, "warmth": warmth, "rides": rule @ [warmth, 1]})
    return Dataset.from_list(rows)


def load_block(context: Context, message: Message) -> tuple[Any, Any]:
    """Return the client's data of the round's block."""
    partitioner = TimeBlockPartitioner("station", "when", "weekday: Mon-Fri, weekend: Sat,Sun")
    partitioner.dataset = load_dataset()
    block = int(str(message.content["config"]["block"]))
    found = partitioner.load_block(int(context.node_config["partition-id"]), block).with_format("numpy")[:]
    return np.column_stack([found["warmth"], np.ones(len(found["warmth"]))]), found["rides"]


app, server, printed = ClientApp(), ServerApp(), {}


@app.train()
def train(message: Message, context: Context) -> Message:
    weights = message.content["arrays"]["weights"].numpy()
    x, y = load_block(context, message)
    for _ in range(10):
        weights = weights - 0.2 * 2 * (x @ weights - y) @ x / len(y)
    content = {"arrays": ArrayRecord({"weights": Array(weights)}), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    schedule = RoundSchedule(list(RULES), rounds_per_block=3, cycles=2)
    strategy = MMPSGD(schedule=schedule, fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    result = strategy.start(grid, ArrayRecord({"weights": Array(np.zeros(2))}))
    for name, arrays in result.predictors.items():
        weights = arrays["weights"].numpy()
        printed[name] = {rule: float(np.abs(weights - right).max()) for rule, right in RULES.items()}


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(server, app, len(STATIONS))
    print(json.dumps(printed))
