"""A neighbour that shares all layers but the last: one trunk for everybody, one head for each block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from perennial.common.wire.arrays import array_record
from perennial.common.wire.chains import MIXED
from perennial.common.wire.layout import Layout
from perennial.server.strategies.own.averaging import CohortAveraging
from perennial.server.strategies.own.dispatch import Dispatch


def head_of(layout: Layout) -> tuple[str, ...]:
    """Return the arrays of the last layer: those named as the last one is up to its last dot."""
    layer = layout.names[-1].rpartition(".")[0]
    first = len(layout.names)
    while first and layout.names[first - 1].rpartition(".")[0] == layer:
        first -= 1
    return layout.names[first:]


class BlockModels(CohortAveraging):
    """Has a model for each block. ``own``: the arrays that a block has for itself; all blocks share the rest."""

    def __init__(self, dispatch: Dispatch, blocks: int, own: tuple[str, ...], chain: str = MIXED) -> None:
        super().__init__(dispatch, chain)
        self._blocks, self._own = blocks, own
        self._models: list[ArrayRecord] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model of the round's block."""
        self._models = self._models or [arrays] * self._blocks
        return super().configure_train(server_round, self._models[self.dispatch.where().block], config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        trained, metrics = super().aggregate_train(server_round, replies)
        if trained is not None:
            here = self.dispatch.where().block
            self._models = [
                trained
                if block == here
                else array_record((name, (model if name in self._own else trained)[name]) for name in trained)
                for block, model in enumerate(self._models)
            ]
        return trained, metrics

    def block_models(self) -> list[ArrayRecord]:
        return self._models

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "models": self._models}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._models = list(state["models"])


class FedRep(BlockModels):
    """Heads of FedRep and FedPer (Collins et al., 2021; Arivazhagan et al., 2019), keyed by block instead of client.

    A round trains trunk and head together, as FedPer does, from the trunk of the round before and the block's own head.
    One model travels each way.
    """

    def __init__(self, dispatch: Dispatch, blocks: int) -> None:
        super().__init__(dispatch, blocks, head_of(dispatch.layout))
