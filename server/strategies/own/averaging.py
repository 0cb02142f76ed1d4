"""The strategies inside, for the project's own app: one chain, averaged over the updates that a dispatch has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum, Strategy

from perennial.common.command.config import RunConfig
from perennial.common.wire.arrays import encode
from perennial.common.wire.chains import MIXED, Vector
from perennial.common.wire.layout import Layout
from perennial.server.run import inner_state
from perennial.server.strategies.carriers import with_content
from perennial.server.strategies.grids import ShowingGrid
from perennial.server.strategies.own.dispatch import Dispatch

# What Flower's own strategies need to take every node that is shown to them.
EVERYBODY: dict[str, Any] = {"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1}


class CohortAveraging(Strategy):
    """Sends a model to the round's cohort, and averages what comes back.

    chain: as its model is called on the wire. step: a strategy of Flower's that takes the average for one reply and
    makes the next model of it, as FedAdam does.
    """

    # By the dispatch.
    replies_are_checked = True

    def __init__(self, dispatch: Dispatch, chain: str = MIXED, step: Strategy | None = None) -> None:
        self.dispatch, self.chain, self._step = dispatch, chain, step

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        nodes = self._nodes(server_round, grid)
        if self._step and nodes:
            # It notes the model; what it would send is an order of ours.
            showing = ShowingGrid(grid, nodes, type(self._step).__name__)
            list(self._step.configure_train(server_round, arrays.copy(), ConfigRecord(), showing))
        content = RecordDict({self.chain: arrays})
        return [Message(content, node, MessageType.TRAIN) for node in self._addresses(nodes)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        updates, replies = self.dispatch.updates, list(replies)
        if not updates:
            return None, None
        layout, counts = self.dispatch.layout, [update.losses for update in updates]
        loss = self.dispatch.average([update.train_losses[self.chain] for update in updates], counts)
        model = encode(self._average(server_round, replies), layout)
        if self._step:
            stepped, _ = self._step.aggregate_train(server_round, [_as_reply(replies[0], model)])
            assert stepped is not None
            model = encode(_vector(stepped, layout), layout)
        return model, MetricRecord({f"train-loss-{self.chain}": loss})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        # The server has the test sets.
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    def summary(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"step": inner_state.save(self._step) if self._step else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._step:
            inner_state.restore(self._step, state["step"])

    def _nodes(self, server_round: int, grid: Grid) -> list[int]:
        return self.dispatch.muster(server_round, grid)

    def _addresses(self, nodes: list[int]) -> list[int]:
        return nodes

    def _average(self, server_round: int, replies: Sequence[Message]) -> Vector:
        dispatch = self.dispatch
        if dispatch.config.aggregation == "mean":
            # Flower's FedAvg sums in float32: over 100 clients of the paper's CNN its mean is off by up to 5e-8, 15
            # times as much as the cast of an exact sum; and its sum depends on the order of arrival.
            # Whole numbers and flags have no mean: they are the first node's.
            return dispatch.intake.mean(self.chain)
        rule = RULES[dispatch.config.aggregation](dispatch.config, len(replies))
        models = [encode(update.models[self.chain], dispatch.layout) for update in dispatch.updates]
        given = [_as_reply(reply, model) for reply, model in zip(replies, models, strict=True)]
        found, _ = rule.aggregate_train(server_round, given)
        assert found is not None
        return _vector(found, dispatch.layout)


class Follower(CohortAveraging):
    """A chain that goes to the nodes that were mustered for the mixed one."""

    def _nodes(self, server_round: int, grid: Grid) -> list[int]:
        return self.dispatch.nodes

    def _addresses(self, nodes: list[int]) -> list[int]:
        # What goes to one goes to all.
        return nodes[:1]


# Flower's rules for updates that may be wrong, made for as many replies as there are.
RULES: dict[str, Callable[[RunConfig, int], Strategy]] = {
    "median": lambda config, replies: FedMedian(**EVERYBODY),
    "trimmed-mean": lambda config, replies: FedTrimmedAvg(**EVERYBODY, beta=config.trim),
    "krum": lambda config, replies: Krum(**EVERYBODY, num_malicious_nodes=int(config.trim * replies)),
}


def _as_reply(reply: Message, model: ArrayRecord) -> Message:
    """Return a reply with a model as Flower's clients send it."""
    return with_content(reply, RecordDict({"arrays": model, "metrics": MetricRecord({"num-examples": 1})}))


def _vector(model: ArrayRecord, layout: Layout) -> Vector:
    """Return the model in float32, whatever a strategy made of it."""
    return layout.flatten({name: array.numpy() for name, array in model.items()})
