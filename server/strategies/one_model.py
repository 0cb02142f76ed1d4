"""The strategy inside by itself, on the same schedule: what MM-PSGD and MC-PSGD are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from perennial.common.cycle.schedule import Schedule
from perennial.server.strategies.mm_psgd import MMPSGD


class OneModel(MMPSGD):
    """Trains what MM-PSGD trains; every block has the newest model of the mixed chain as its predictor.

    >>> from perennial import RoundSchedule
    >>> from perennial.example import example_arrays, example_grid
    >>> result = OneModel(schedule=RoundSchedule(2, rounds_per_block=2)).start(example_grid(), example_arrays(), 2)
    >>> result.predictors["0"] == result.predictors["1"] == result.arrays
    True
    """

    one_model = True

    def __init__(self, strategy: Strategy | None = None, *, schedule: Schedule, **options: Any) -> None:
        super().__init__(strategy, schedule=schedule, decay=0.0, **options)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is not None:
            current = self.block_name(self.check_running())
            for block in self.schedule.names:
                if block != current:
                    self.predictors.fold(block, arrays)
            self.rounds.note(server_round, predictors=self.predictors.taken(), folded=dict(self.predictors.folded))
        return arrays, metrics
