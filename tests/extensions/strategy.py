"""A strategy: server momentum by hand. `strategy: tests.extensions.strategy:momentum` mimics `strategy: fedavgm`."""

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from perennial.common.wire.chains import MIXED
from perennial.server.strategies.own.averaging import EVERYBODY, CohortAveraging
from perennial.server.strategies.own.ways import Way


class Momentum(FedAvg):
    """The average, and 0.9 of the step before; what it keeps is in every checkpoint."""

    def __init__(self, **options):
        super().__init__(**options)
        self.model, self.step = {}, {}

    def configure_train(self, server_round, arrays, config, grid):
        self.model = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        average, metrics = super().aggregate_train(server_round, replies)
        for name, model in self.model.items():
            self.step[name] = 0.9 * self.step.get(name, np.zeros_like(model)) + model - average[name].numpy()
        arrays = {name: Array(model - self.step[name]) for name, model in self.model.items()}
        return ArrayRecord(arrays), metrics


momentum = Way(
    MIXED,
    everywhere=True,
    newest=True,
    own=lambda dispatch, blocks: CohortAveraging(dispatch, step=Momentum(**EVERYBODY)),
)
