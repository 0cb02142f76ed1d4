"""Flower's own strategies, and nodes in memory that train any of them: replies in Flower's usual form."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from perennial.server.link.local_grid import LocalGrid, named

NODES = 10
ASKED = 5


def _private(kind: type[Strategy], **options: float) -> Callable[[], Strategy]:
    inner = {"fraction_train": 0.5, "min_train_nodes": ASKED}
    return lambda: kind(FedAvg(**inner), noise_multiplier=0.3, num_sampled_clients=ASKED, **options)  # type: ignore[arg-type,call-arg]


def _plain(kind: type[Strategy], **options: float) -> Callable[[], Strategy]:
    return lambda: kind(fraction_train=0.5, fraction_evaluate=0.5, **options)  # type: ignore[call-arg]


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": _plain(flower.FedAvg),
    "FedProx": _plain(flower.FedProx, proximal_mu=0.1),
    "FedAdam": _plain(flower.FedAdam),
    "FedYogi": _plain(flower.FedYogi),
    "FedAdagrad": _plain(flower.FedAdagrad),
    "FedAvgM": _plain(flower.FedAvgM, server_momentum=0.9, server_learning_rate=0.5),
    "FedMedian": _plain(flower.FedMedian),
    "FedTrimmedAvg": _plain(flower.FedTrimmedAvg, beta=0.2),
    "Krum": _plain(flower.Krum, num_malicious_nodes=1),
    "MultiKrum": _plain(flower.MultiKrum, num_malicious_nodes=1, num_nodes_to_select=2),
    "Bulyan": _plain(flower.Bulyan, num_malicious_nodes=0),
    "QFedAvg": _plain(flower.QFedAvg, client_learning_rate=0.1, q=0.2),
    "ServerSideFixedClipping": _private(flower.DifferentialPrivacyServerSideFixedClipping, clipping_norm=0.5),
    "ClientSideFixedClipping": _private(flower.DifferentialPrivacyClientSideFixedClipping, clipping_norm=0.5),
    "ServerSideAdaptiveClipping": _private(flower.DifferentialPrivacyServerSideAdaptiveClipping),
    "ClientSideAdaptiveClipping": _private(flower.DifferentialPrivacyClientSideAdaptiveClipping),
}


@dataclass
class Nodes(LocalGrid):
    """Ten nodes; each moves the model by a step of its own, drawn from the node and the round."""

    asked: list[list[int]] = field(default_factory=list)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        self.asked.append([message.metadata.dst_node_id for message in messages])
        return [self._reply(message) for message in messages]

    def _reply(self, message: Message) -> Message:
        named(message)
        server_round = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        draw = np.random.default_rng([message.metadata.dst_node_id, server_round])
        arrays = ArrayRecord(
            {
                name: Array((one.numpy() + draw.normal(size=one.shape)).astype(one.numpy().dtype))
                for name, one in message.content.array_records["arrays"].items()
            }
        )
        numbers = {"num-examples": int(draw.integers(1, 20)), "train_loss": float(draw.random()), "norm_bit": 1}
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(numbers)}), reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        return list(range(2, 2 + NODES))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def initial() -> ArrayRecord:
    draw = np.random.default_rng(0)
    return ArrayRecord(
        {"w": Array(draw.normal(size=(3, 2)).astype(np.float32)), "b": Array(draw.normal(size=2).astype(np.float32))}
    )


def train(strategy: Strategy, arrays: ArrayRecord, rounds: Iterable[int], grid: Nodes | None = None) -> ArrayRecord:
    """Return the arrays after the rounds, each as Flower's loop does it."""
    grid = grid or Nodes()
    for server_round in rounds:
        messages = list(strategy.configure_train(server_round, arrays, ConfigRecord({"lr": 0.1}), grid))
        assert len(messages) == ASKED
        found, _ = strategy.aggregate_train(server_round, grid.send_and_receive(messages))
        assert found is not None
        arrays = found
    return arrays


def seed(number: int) -> None:
    """Put the generators that Flower draws from to a known place."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
