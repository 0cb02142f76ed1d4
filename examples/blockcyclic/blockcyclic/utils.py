"""blockcyclic: A Flower Baseline. What a run measures, and tells at its end."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import ArrayRecord

from blockcyclic.dataset import Blocks
from blockcyclic.model import Net, test
from perennial import MCPSGD, MMPSGD


class Judge:
    """Judges FedAvg's model and the predictors on the test sets of all blocks."""

    def __init__(
        self, strategy: MMPSGD | MCPSGD, data: Blocks, every: int, results: str
    ) -> None:
        self.strategy, self.data, self.every = strategy, data, every
        self.results = Path(results) if results else None
        self.rows: list[dict[str, float]] = []

    def __call__(self, record) -> None:
        """Take the record of a round."""
        done, blocks = record.slot.server_round, self.strategy.schedule.names
        # A block that has not come yet has no predictor.
        if done % self.every or len(record.predictors) < len(blocks):
            return
        arrays = self.strategy.mixed.arrays
        tests = [self.data.test(block) for block in range(len(blocks))]
        row = {
            "round": done,
            "cycle": record.slot.cycle,
            "fedavg": _mean([_accuracy(arrays, one) for one in tests]),
            self.strategy_name: _mean(
                [
                    _accuracy(record.predictors[name], one)
                    for name, one in zip(blocks, tests, strict=True)
                ]
            ),
        }
        self.rows.append(row)
        if self.results:
            with self.results.open("a") as file:
                file.write(json.dumps(row) + "\n")

    @property
    def strategy_name(self) -> str:
        """How the paper calls the algorithm."""
        return "MC-PSGD" if isinstance(self.strategy, MCPSGD) else "MM-PSGD"

    def tell(self) -> None:
        """Print best accuracies and means of the last cycle."""
        if not self.rows:
            print("no round was judged: a block has not come yet")
            return
        last = [row for row in self.rows if row["cycle"] == self.rows[-1]["cycle"]]
        for name in ("fedavg", self.strategy_name):
            best = max(row[name] for row in self.rows)
            mean = _mean([row[name] for row in last])
            called = "FedAvg" if name == "fedavg" else name
            print(f"{called}: best {best:.1f} %, mean of the last cycle {mean:.1f} %")


def _accuracy(arrays: ArrayRecord, data) -> float:
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return 100 * test(net, data)[1]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
