"""A neighbour that is not told the block: as many models as blocks, and each round trains the one that fits best."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from perennial.common.wire.arrays import decode, encode
from perennial.common.wire.chains import MIXED, SEPARATE, Vector
from perennial.common.wire.layout import Layout
from perennial.common.wire.seeding import generator
from perennial.server.strategies.own.averaging import CohortAveraging
from perennial.server.strategies.own.dispatch import Dispatch


def starts(initial: Vector, layout: Layout, count: int, seed: int) -> tuple[Vector, ...]:
    """Return the initial model and others like it: models that start the same would never be told apart.

    Each array's values are drawn alike, so an array in another order is another draw from the same initialiser.
    """
    others = []
    for number in range(1, count):
        rng = generator(seed, "ifca", number)
        parts = [rng.permutation(part.ravel()) for part in layout.views(initial).values()]
        # A mask, or a place in a sequence, would be none in another order.
        others.append(layout.settled(np.concatenate(parts), initial))
    return (initial, *others)


class IFCA(CohortAveraging):
    """IFCA (Ghosh et al., 2020) with one choice for the whole cohort, which in block-cyclic data is of one kind.

    Before each round the cohort judges all models, two a loss order; the one with the smallest average loss is trained.
    The model of a block is the one that its last round chose, as it is today.
    """

    def __init__(self, dispatch: Dispatch, blocks: int) -> None:
        super().__init__(dispatch)
        self._models: list[ArrayRecord] = []
        # Which model each block chose last; before that the initial one, which is kept as it was.
        self._chosen: list[int | None] = [None] * blocks
        self._initial = ArrayRecord()
        self._choice = self._judged_round = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the cohort judge all models, unless a round is attempted again, and send it the best one."""
        if not self._models:
            self._begin(arrays)
        if server_round != self._judged_round:
            self._judged_round = server_round
            losses = [loss for first in range(0, len(self._models), 2) for loss in self._judged(first, grid)]
            # The first of equals, as np.argmin gives it, so that reruns agree.
            self._choice = int(np.argmin(losses[: len(self._models)]))
        return super().configure_train(server_round, self._models[self._choice], config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        trained, metrics = super().aggregate_train(server_round, replies)
        if trained is not None:
            self._models = [trained if number == self._choice else one for number, one in enumerate(self._models)]
            self._chosen[self.dispatch.where().block] = self._choice
        return trained, metrics

    def block_models(self) -> list[ArrayRecord]:
        return [self._initial if number is None else self._models[number] for number in self._chosen]

    def state_dict(self) -> dict[str, Any]:
        kept = {"models": self._models, "chosen": list(self._chosen), "initial": self._initial}
        return {**super().state_dict(), **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._models, self._chosen, self._initial = list(state["models"]), list(state["chosen"]), state["initial"]

    def _begin(self, arrays: ArrayRecord) -> None:
        layout = self.dispatch.layout
        models = starts(decode(arrays, layout, MIXED), layout, len(self._chosen), self.dispatch.config.seed)
        self._initial, self._models = arrays, [encode(model, layout) for model in models]

    def _judged(self, first: int, grid: Grid) -> tuple[float, float]:
        """Return the average losses of two models; a last one without a partner is judged beside itself."""
        partner = self._models[min(first + 1, len(self._models) - 1)]
        losses = self.dispatch.judged({MIXED: self._models[first], SEPARATE: partner}, grid)
        return losses[MIXED], losses[SEPARATE]
