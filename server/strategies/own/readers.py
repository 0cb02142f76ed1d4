"""Readers: what makes the predictors of one run out of the chains of a training that may serve several runs."""

from __future__ import annotations

from collections.abc import Sequence

from flwr.app import ArrayRecord

from perennial.common.cycle.schedule import Slot
from perennial.common.wire.chains import SEPARATE
from perennial.server.strategies.base import Heads
from perennial.server.strategies.predictors import BlockPredictors
from perennial.server.strategies.trees import Tree

CHOSEN = "chosen"


class Reader:
    """Observes the rounds, and folds the model of one source into the predictor of each round's block.

    source: mixed, separate (a block's own newest model) or chosen. everywhere: fold into every block's predictor;
    without decay, and out of the mixed chain, that is FedAvg's one model. predictors: those of the strategy, if it
    reads the same; else they are made here, and folded by the same code.
    """

    def __init__(
        self,
        source: str,
        decay: float | None,
        blocks: Sequence[str],
        *,
        everywhere: bool = False,
        predictors: BlockPredictors | None = None,
    ) -> None:
        self._source, self._blocks, self._everywhere = source, tuple(blocks), everywhere
        self._shared = predictors is not None
        self.predictors = BlockPredictors(decay) if predictors is None else predictors
        self._initial = ArrayRecord()

    def begin(self, initial: ArrayRecord) -> None:
        self._initial = initial
        if not self._shared:
            self.predictors.begin(initial)

    def folded(self, slot: Slot, heads: Heads) -> None:
        if self._shared:
            return
        if not self._everywhere:
            self.predictors.fold(self._blocks[slot.block], self._model(slot.block, heads))
            return
        for block, name in enumerate(self._blocks):
            if self._source == SEPARATE or not block:
                self.predictors.fold(name, self._model(block, heads))
            else:
                # One model for all blocks, which is then folded and judged once.
                self.predictors.same_as(self._blocks[0], name)

    @property
    def models(self) -> list[ArrayRecord]:
        """Return each block's predictor, the initial model while it has none."""
        return [self.predictors.models.get(block, self._initial) for block in self._blocks]

    @property
    def counts(self) -> tuple[int, ...]:
        """r of each block."""
        return tuple(self.predictors.folded.get(block, 0) for block in self._blocks)

    def state_dict(self) -> Tree | None:
        return None if self._shared else self.predictors.state_dict()

    def load_state_dict(self, state: Tree | None) -> None:
        if state is not None:
            self.predictors.load_state_dict(state)

    def _model(self, block: int, heads: Heads) -> ArrayRecord:
        source = heads.chosen if self._source == CHOSEN else self._source
        return heads.blocks[block] if source == SEPARATE else heads.mixed
