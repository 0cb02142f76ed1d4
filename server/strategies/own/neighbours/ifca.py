"""A neighbour that is not told the block: as many models as blocks, and each round trains the one that fits best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MessageType

from perennial.common.cycle.schedule import Slot
from perennial.common.wire.arrays import encode
from perennial.common.wire.chains import MIXED, SEPARATE, Vector
from perennial.common.wire.layout import Layout
from perennial.common.wire.seeding import generator
from perennial.common.wire.updates import Losses, Update, read_losses
from perennial.server.cohort.exchange import Exchange
from perennial.server.psgd import Chains
from perennial.server.run.state import RoundRecord
from perennial.server.strategies.own.block_cyclic import BlockCyclic


def starts(initial: Vector, layout: Layout, count: int, seed: int) -> tuple[Vector, ...]:
    """Return the initial model and others like it: models that start the same would never be told apart.

    Each array's values are drawn alike, so an array in another order is another draw from the same initialiser.
    """
    others = []
    for number in range(1, count):
        rng = generator(seed, "ifca", number)
        others.append(np.concatenate([rng.permutation(part.ravel()) for part in layout.unflatten(initial).values()]))
    return (initial, *others)


class IFCA(BlockCyclic):
    """IFCA (Ghosh et al., 2020) with one choice for the whole cohort, which in block-cyclic data is of one kind.

    Before each round the cohort judges all models, two a loss order; the one with the smallest average loss is trained.
    The separate chain of a block is the model that its last round chose, as it is today; the models are the memory.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._choice = 0
        self._vote: RoundRecord
        if self.state.slot is None:
            blocks, initial = len(self.state.predictors[0].models), self.state.chains.mixed
            models = starts(initial, self.layout, blocks, self.config.seed)
            memory = {f"model-{number}": model for number, model in enumerate(models)}
            self.state = replace(self.state, chains=Chains.start(initial, blocks), memory=memory)

    def _heads(self, block: int) -> dict[str, Vector]:
        return {MIXED: self._models()[self._choice]}

    def _models(self) -> list[Vector]:
        return [self.state.memory[f"model-{number}"] for number in range(len(self.state.memory))]

    def _train_exchange(self, slot: Slot, attempt: int, *, report_loss: bool = False) -> Exchange[Update]:
        if attempt == 0:
            self._vote = RoundRecord(slot)
            losses = [loss for first in range(0, len(self._models()), 2) for loss in self._judged(slot, first)]
            # The first of equals, as np.argmin gives it, so that reruns agree.
            self._choice = int(np.argmin(losses[: len(self._models())]))
        return super()._train_exchange(slot, attempt, report_loss=report_loss)

    def _judged(self, slot: Slot, first: int) -> tuple[float, float]:
        """Return the average losses of two models; a last one without a partner is judged beside itself."""
        models = self._models()
        pair = {MIXED: models[first], SEPARATE: models[min(first + 1, len(models) - 1)]}
        encoded = {chain: encode(model, self.layout) for chain, model in pair.items()}

        def exchange(attempt: int) -> Exchange[Losses]:
            orders = self._orders(slot, attempt, report_loss=True)
            return Exchange(orders, encoded, read_losses, MessageType.EVALUATE, self.config.round_timeout)

        asked = exchange(0)
        replies = self._grid.send_and_receive(asked.send(), timeout=self.config.round_timeout)
        answered, self._vote = self._until_enough(self._vote, asked, replies, exchange)
        judged = list(answered.replies.values())
        return (
            self._average_loss([losses.mixed for losses in judged], judged),
            self._average_loss([losses.separate for losses in judged], judged),
        )

    def _advance(self, record: RoundRecord, models: Mapping[str, Vector], judged: Sequence[Losses]) -> None:
        before, trained = self._models()[self._choice], models[MIXED]
        separate = tuple(
            trained if block == record.slot.block or model is before else model
            for block, model in enumerate(self.state.chains.separate)
        )
        memory = {**self.state.memory, f"model-{self._choice}": trained}
        self.state = replace(self.state, slot=record.slot, chains=Chains(trained, separate), memory=memory)
        down = Counter(record.bytes_down) + Counter(self._vote.bytes_down)
        self._fold(replace(record, bytes_down=dict(down), rejections=self._vote.rejections + record.rejections))
