"""A chain is a strategy, with the arrays that it trains, a config record of its own and its own count of rounds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError
from perennial.server.run import inner_state
from perennial.server.strategies.grids import ShowingGrid
from perennial.server.strategies.inner import weight_key
from perennial.server.strategies.messages import addressed
from perennial.server.strategies.trees import RunningConfig, array_tree, arrays_of


class Chain:
    """Trains one chain by the strategy ``strategy``; ``name`` is what errors call it."""

    def __init__(self, name: str, strategy: Strategy) -> None:
        self.name, self.strategy = name, strategy
        self.arrays = ArrayRecord()
        self.rounds = 0
        self._config = RunningConfig(ConfigRecord())

    def begin(self, arrays: ArrayRecord, config: ConfigRecord) -> None:
        """Start anew from ``arrays``. ``config`` is copied: strategies write into theirs, from round to round."""
        self.arrays, self.rounds, self._config = arrays.copy(), 0, RunningConfig(config)

    @property
    def config(self) -> ConfigRecord:
        return self._config.record

    def configure(self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return the messages of the chain's next round, to the nodes that its strategy chooses."""
        return list(self.strategy.configure_train(self.rounds + 1, arrays.copy(), config, grid))

    def configure_for(self, nodes: Sequence[int], shown: Sequence[int], grid: Grid) -> list[Message]:
        """Return the messages of the chain's next round to ``nodes``, which another strategy chose out of ``shown``.

        What this strategy draws from Python's ``random`` is undone: the other must draw as if it were alone.
        """
        sender = f"{type(self.strategy).__name__} of the {self.name} chain"
        drawn = random.getstate()
        messages = self.configure(self.arrays, self.config, ShowingGrid(grid, shown, sender))
        random.setstate(drawn)
        return addressed(messages, nodes, sender)

    def aggregate(self, replies: Sequence[Message]) -> tuple[bool, MetricRecord | None]:
        """Train on from the replies; return whether that gave a new model, and the strategy's metrics.

        Without a new model the chain keeps its old one, and its round comes again.
        """
        # Seen before: some strategies take the arrays out of the replies.
        checked = getattr(self.strategy, "replies_are_checked", False)
        odd = "" if checked else _odd_reply(replies, self.arrays, weight_key(self.strategy))
        try:
            arrays, metrics = self.strategy.aggregate_train(self.rounds + 1, list(replies))
        except Exception as error:
            if odd:
                raise InputError(f"{self.name} chain: {odd}") from error
            raise
        if arrays is None:
            return False, metrics
        if difference := _difference(arrays, self.arrays):
            raise InputError(
                f"{self.name} chain: {odd or f'{type(self.strategy).__name__} gave a model with {difference}'}"
            )
        self.arrays, self.rounds = arrays, self.rounds + 1
        return True, metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "arrays": array_tree(self.arrays),
            "config": self._config.state(),
            "strategy": inner_state.save(self.strategy),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` gave; the chain must have begun with the arrays and config of this run."""
        arrays = arrays_of(state["arrays"])
        if difference := _difference(arrays, self.arrays):
            raise InputError(f"the run to go on from has another model: {difference} in its {self.name} chain")
        self.arrays, self.rounds = arrays, int(state["rounds"])
        self._config.load(state["config"])
        inner_state.restore(self.strategy, state["strategy"])


def _odd_reply(replies: Sequence[Message], sent: ArrayRecord, weight: str) -> str:
    """Return what is unusual in the first reply that is not as Flower's clients answer; '' if all of them are.

    It is told only if the strategy cannot use the replies: one of a user's own may want others.
    """
    for reply in replies:
        if not reply.has_error() and (found := _odd_content(reply.content, sent, weight)):
            return f"node {reply.metadata.src_node_id} answered with {found}"
    return ""


def _odd_content(content: RecordDict, sent: ArrayRecord, weight: str) -> str:
    models, metrics = list(content.array_records.values()), list(content.metric_records.values())
    if len(models) != 1 or len(metrics) != 1:
        names = ", ".join(map(repr, content)) or "nothing"
        return (
            f"{len(models)} ArrayRecords and {len(metrics)} MetricRecords, and one of each is needed (it has {names})"
        )
    if difference := _difference(models[0], sent):
        return f"a model that has {difference}"
    if weight not in metrics[0]:
        return f"no metric {weight!r} (it has {', '.join(map(repr, metrics[0])) or 'no metrics'})"
    return ""


def _difference(arrays: ArrayRecord, model: ArrayRecord) -> str:
    """Return the first difference in names and shapes from ``model``; '' if there is none."""
    for name in model:
        if name not in arrays:
            return f"no array {name!r}"
    for name, array in arrays.items():
        if name not in model:
            return f"an array {name!r} that the initial model does not have"
        if tuple(array.shape) != tuple(model[name].shape):
            return f"{name!r} of shape {tuple(array.shape)} in place of {tuple(model[name].shape)}"
    return ""
