"""Flower as its quickstart does it: FedAvg, one client on each SuperNode, torch eager. Prints seconds as JSON.

    python -m benchmarks.sides.stock_flower ROUNDS [NETWORK]

NETWORK: one of benchmarks/sides/wide.py; the paper's if none is named.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from benchmarks.sides.setting import (
    BATCH_SIZE,
    CLIENTS,
    LEARNING_RATE,
    LENGTH,
    LOCAL_ITERATIONS,
    TOKENS,
    data_file,
)
from benchmarks.sides.wide import OTHERS


class Net(nn.Module):
    """The tutorial's network, written as the tutorial writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x))).flatten(1)
        result: torch.Tensor = self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))
        return result


def network(name: str) -> nn.Module:
    return OTHERS[name][0]((3, 32, 32), 10) if name else Net()


def client_app(path: str, name: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        place = int(context.node_config["partition-id"])
        x, y = _texts(place) if name and OTHERS[name][1] else _shard(path, place)
        net = network(name)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
        rows = np.random.default_rng().integers(0, len(y), (LOCAL_ITERATIONS, BATCH_SIZE))
        for batch in rows:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        content = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"train_loss": float(loss), "num-examples": len(y)}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


_CACHE: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def _shard(path: str, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    if place not in _CACHE:
        from perennial.common.data.npz import read

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays = read(__import__("pathlib").Path(path), ("x_train", "y_train"), mapped=True)
        mine = slice(place * 500, place * 500 + 100)
        x = torch.from_numpy(arrays["x_train"][mine].astype(np.float32) / 255 * 2 - 1)
        _CACHE[place] = x, torch.from_numpy(arrays["y_train"][mine].astype(np.int64))
    return _CACHE[place]


def _texts(place: int) -> tuple[torch.Tensor, torch.Tensor]:
    if place not in _CACHE:
        rng = np.random.default_rng(place)
        texts, labels = rng.integers(0, TOKENS, (100, LENGTH)), rng.integers(0, 10, 100)
        _CACHE[place] = torch.from_numpy(texts), torch.from_numpy(labels)
    return _CACHE[place]


def main(rounds: int, name: str = "") -> None:
    stamps: list[float] = []
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        def stamp(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            stamps.append(time.perf_counter())
            return None

        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        strategy.start(
            grid, ArrayRecord(network(name).state_dict()), rounds + 1, evaluate_fn=stamp, train_config=ConfigRecord()
        )

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"include_dashboard": False}}
    run_simulation(server, client_app(str(data_file()), name), CLIENTS, backend_config=resources)  # type: ignore[arg-type]
    # The first round starts the actors.
    print(json.dumps(np.diff(stamps)[1:].tolist()))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
