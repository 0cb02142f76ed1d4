"""MM-PSGD (Algorithm 1) around any Flower strategy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.cycle.schedule import Schedule
from perennial.common.wire.chains import MIXED
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.inner import inner_of
from perennial.server.strategies.messages import answerers, nodes_of


class MMPSGD(BlockStrategy):
    """Multi-Model Parallel SGD: trains what the strategy inside trains, and keeps a predictor for each block of data.

    strategy: any Flower strategy that trains one chain. Without it, the remaining arguments make a FedAvg. schedule:
    says to which block a round belongs. averaging: "mean", or "exponential", in which ``decay`` is the weight of the
    old predictor; the first model of a block is its first predictor. round_attempts: how often a round is tried if it
    gets no usable reply; None: without end.

    >>> from perennial import MMPSGD, RoundSchedule
    >>> from perennial.example import example_arrays, example_grid
    >>> strategy = MMPSGD(schedule=RoundSchedule(blocks=["day", "night"], rounds_per_block=2), fraction_train=0.5)
    >>> result = strategy.start(grid=example_grid(), initial_arrays=example_arrays(), num_rounds=8)
    >>> sorted(result.predictors)
    ['day', 'night']
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        schedule: Schedule,
        averaging: str = "exponential",
        decay: float = 0.5,
        round_attempts: int | None = 10,
        **fedavg: Any,
    ) -> None:
        super().__init__(inner_of(strategy, fedavg, "MMPSGD"), schedule, averaging, decay, round_attempts)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send x_bar to the round's nodes (line 9 of the round before), which train it (lines 10 to 12)."""
        slot = self.check_running()
        messages = self.mixed.configure(arrays, config, grid)
        self.rounds.note(server_round, nodes=tuple(nodes_of(messages)))
        return self.carrier.pack({MIXED: messages}, slot, self.block_name(slot))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new x_bar, which is in the predictor of its block by then."""
        slot = self.check_running()
        mixed = self.unpacked(server_round, replies).chains.get(MIXED, [])
        answered = tuple(answerers(mixed))
        # Line 5: the global model, by the strategy inside.
        moved, metrics = self.mixed.aggregate(mixed)
        if not moved:
            return None, metrics
        self.rounds.note(server_round, answered=answered, train_metrics={MIXED: metrics})
        # Line 6: m, the current block. Line 7: r, the rounds of it so far, is counted by the predictors.
        # Line 8: fold x_bar into the predictor of m.
        self.fold(slot, self.mixed.arrays)
        return self.mixed.arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy inside judge the predictor of the round's block, if it asks for an evaluation."""
        self.check_running()
        return self.judging.configure(self.rounds[server_round], config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        self.check_running()
        return self.mixed.strategy.aggregate_evaluate(server_round, replies)
