"""Readers: the rules that make one predictor a block out of the chains that a run trains.

FedAvg, MM-PSGD and MC-PSGD read the same chains, so one pass of training serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from perennial.common.command.config import RunConfig
from perennial.common.cycle.schedule import Slot
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE, Vector
from perennial.server.psgd import Chains, Predictors

CHOSEN = "chosen"


@dataclass(frozen=True)
class Reader:
    """Folds the model of one source into the predictor of a round's block.

    source: mixed, separate or chosen. decay: None for the running mean, else the weight of the old predictor.
    everywhere: fold into every block's predictor, not only that of the round's block; with decay 0 and the mixed chain
    that is FedAvg's one model. trains: the neighbour whose own training this reads; '' for the chains of the paper.
    """

    source: str
    decay: float | None
    everywhere: bool = False
    trains: str = ""

    @property
    def chains(self) -> tuple[str, ...]:
        """The chains that this reader needs trained."""
        return (MIXED,) if self.source == MIXED else CHAINS

    def read(self, predictors: Predictors, slot: Slot, chains: Chains, chosen: str | None) -> Predictors:
        """Return the predictors after the round of ``slot``, whose models are the heads of ``chains``."""
        for block in range(len(predictors.models)) if self.everywhere else (slot.block,):
            predictors = predictors.with_fold(block, self._model(block, chains, chosen), self.decay)
        return predictors

    def _model(self, block: int, chains: Chains, chosen: str | None) -> Vector:
        source = chosen if self.source == CHOSEN else self.source
        return chains.separate[block] if source == SEPARATE else chains.mixed


def reader_of(config: RunConfig) -> Reader:
    """Return the reader that the strategy stands for; the only place that asks for its name."""
    decay = config.decay if config.averaging == "exponential" else None
    if config.strategy == "fedavg":
        return Reader(MIXED, 0.0, everywhere=True)
    if config.strategy == "fedavg-mean":
        return Reader(MIXED, decay, everywhere=True)
    if config.strategy in ("fedavgm", "fedadam"):
        return Reader(MIXED, 0.0, everywhere=True, trains=config.strategy)
    if config.strategy in ("fedrep", "ifca"):
        return Reader(SEPARATE, 0.0, everywhere=True, trains=config.strategy)
    return Reader({"mm-psgd": MIXED, "block-separate": SEPARATE, "mc-psgd": CHOSEN}[config.strategy], decay)
