"""pfl-research's FedAvg on the same round, in one process, torch eager. Prints each round's seconds as JSON.

Runs in an environment of its own, which has the package `pfl` and not ours.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

CLIENTS, LOCAL_ITERATIONS, BATCH_SIZE, LEARNING_RATE = 100, 10, 2, 0.01


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.eval() if eval else self.train()
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
        return {}


class Stamps(TrainingProcessCallback):
    def __init__(self) -> None:
        self.stamps: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    data = {
        str(client): Dataset(
            [
                torch.from_numpy(rng.normal(size=(100, 3, 32, 32)).astype(np.float32)),
                torch.from_numpy(rng.integers(0, 10, 100)),
            ]
        )
        for client in range(CLIENTS)
    }
    users = list(data)
    federated = FederatedDataset(lambda user: data[user], get_user_sampler("minimize_reuse", users))
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    stamps = Stamps()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1, evaluation_frequency=10**6, train_cohort_size=CLIENTS, val_cohort_size=0
        ),
        SimulatedBackend(federated, federated),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=LOCAL_ITERATIONS,
            local_learning_rate=LEARNING_RATE,
            local_batch_size=BATCH_SIZE,
        ),
        NNEvalHyperParams(local_batch_size=100),
        callbacks=[stamps],
    )
    print(json.dumps(np.diff(stamps.stamps).tolist()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
