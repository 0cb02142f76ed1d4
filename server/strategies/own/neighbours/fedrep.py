"""A neighbour that shares all layers but the last: one trunk for everybody, one head for each block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perennial.common.wire.chains import MIXED, Vector
from perennial.common.wire.layout import Layout
from perennial.common.wire.updates import Losses
from perennial.server.psgd import Chains
from perennial.server.run.state import RoundRecord
from perennial.server.strategies.own.block_cyclic import BlockCyclic


def head_start(layout: Layout) -> int:
    """Return where in the vector the last layer begins: the arrays named as the last one is up to its last dot."""
    layer = layout.names[-1].rpartition(".")[0]
    first = len(layout.names)
    while first and layout.names[first - 1].rpartition(".")[0] == layer:
        first -= 1
    return layout.bounds[first]


class FedRep(BlockCyclic):
    """Heads of FedRep and FedPer (Collins et al., 2021; Arivazhagan et al., 2019), keyed by block instead of client.

    A round trains trunk and head together, as FedPer does, from the trunk of the round before and the block's own head.
    The separate chain of a block is its whole model: today's trunk with the block's head. One model travels each way.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = head_start(self.layout)
        if self.state.slot is None:
            blocks = len(self.state.predictors[0].models)
            self.state = replace(self.state, chains=Chains.start(self.state.chains.mixed, blocks))

    def _heads(self, block: int) -> dict[str, Vector]:
        return {MIXED: self.state.chains.separate[block]}

    def _advance(self, record: RoundRecord, models: Mapping[str, Vector], judged: Sequence[Losses]) -> None:
        trained, cut = models[MIXED], self._head
        separate = tuple(
            trained if block == record.slot.block else np.concatenate([trained[:cut], model[cut:]])
            for block, model in enumerate(self.state.chains.separate)
        )
        self.state = replace(self.state, slot=record.slot, chains=Chains(trained, separate))
        self._fold(record)
