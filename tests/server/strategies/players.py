"""Clients whose every answer is known: the model is one number, and training adds a number to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.run import tree
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.record import FoldedRound

Config = dict[str, Any]


def model(value: float, dtype: str = "float32") -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(value, dtype))})


def number(arrays: ArrayRecord) -> float:
    return float(arrays["w"].numpy())


def config_of(message: Message) -> Config:
    return dict(message.content.config_records["config"])


@dataclass
class Players:
    """A ClientApp of plain functions of (node, config): nodes count from 0.

    step: what training adds. loss: of a model that is evaluated, given its number. examples: the weight of a node.
    fails: whether a node's app raises, for a message of a type and config. heard: every message, as it arrived.
    """

    step: Callable[[int, Config], float] = lambda node, config: config.get("lr", 1.0)
    loss: Callable[[int, Config, float], Any] = lambda node, config, value: value
    examples: Callable[[int], Any] = lambda node: 1
    fails: Callable[[int, str, Config], bool] = lambda node, kind, config: False
    loss_key: str = "eval_loss"
    heard: list[tuple[str, int, Config, float]] = field(default_factory=list)

    def __call__(self, message: Message, context: Context) -> Message:
        node, kind, config = int(context.node_config["partition-id"]), message.metadata.message_type, config_of(message)
        value = number(message.content.array_records["arrays"])
        self.heard.append((kind, node, config, value))
        if self.fails(node, kind, config):
            raise RuntimeError(f"node {node} is ill")
        if kind == "train":
            arrays = model(value + self.step(node, config))
            metrics = MetricRecord({"num-examples": self.examples(node), "train_loss": 1.0})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        judged = {"num-examples": self.examples(node), self.loss_key: self.loss(node, config, value)}
        return Message(RecordDict({"metrics": MetricRecord(judged)}), reply_to=message)

    def grid(self, nodes: int = 3) -> MemoryGrid:
        return MemoryGrid(self, nodes)

    def of(self, kind: str, **keys: Any) -> list[tuple[int, Config, float]]:
        """Return node, config and model of the messages of a kind whose config has ``keys``."""
        wanted = {key.replace("_", "-"): one for key, one in keys.items()}
        return [heard[1:] for heard in self.heard if heard[0] == kind and wanted.items() <= heard[2].items()]


def lr(value: float) -> ConfigRecord:
    return ConfigRecord({"lr": value})


class Kept:
    """Keeps the state of every round as a checkpoint would: as text and bytes."""

    def __init__(self, state: tree.Written | None = None) -> None:
        self.state = state
        self.states: list[tree.Written] = []
        self.rounds: list[FoldedRound] = []

    def begin(self, strategy: BlockStrategy, initial_arrays: ArrayRecord) -> Any:
        return None if self.state is None else tree.read(*self.state)

    def keep(self, state: Any, rounds: Sequence[FoldedRound]) -> None:
        self.states.append(tree.write(state))
        self.rounds += rounds
