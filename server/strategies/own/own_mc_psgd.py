"""MC-PSGD (Algorithm 2): a separate chain a block beside the mixed one, and a vote on which serves the block better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from perennial.common.cycle.schedule import Slot
from perennial.common.wire.arrays import encode
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE, Vector
from perennial.common.wire.updates import Losses, Update, read_losses
from perennial.server.cohort.exchange import Exchange
from perennial.server.psgd import choose
from perennial.server.run.state import RoundRecord
from perennial.server.strategies.own.block_cyclic import BlockCyclic


class OwnMCPSGD(BlockCyclic):
    """Trains both chains. The losses that decide a round travel with the updates of the next one.

    Only where the next round is in another block, or there is none, does the vote take an exchange of its own.
    """

    chains = CHAINS
    _vote: Exchange[Losses] | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        pending = self.state.pending
        if pending is not None and (self._next is None or self._next.block != pending.slot.block):
            self._settle(pending, grid)
        return super().configure_train(server_round, arrays, config, grid)

    def _settle(self, pending: RoundRecord, grid: Grid) -> None:
        """Vote on the last round of a run that goes on in another block: the clock went on without it."""
        self._grid = grid
        self.roster.refresh(grid)
        vote = self._loss_exchange(pending.slot, 0)
        replies = grid.send_and_receive(vote.send(), timeout=self.config.round_timeout)
        self._decide(pending, vote, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        super().configure_evaluate(server_round, arrays, config, grid)
        assert self.state.slot is not None
        self._vote = None
        if self._next is not None and self._next.block == self.state.slot.block:
            return []
        # A node that has died since the round began would be waited for.
        self.roster.refresh(grid)
        self._vote = self._loss_exchange(self.state.slot, 0)
        return self._vote.send()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if self._vote is not None:
            assert self.state.pending is not None
            self._decide(self.state.pending, self._vote, replies)
        return super().aggregate_evaluate(server_round, replies)

    def _decide(self, pending: RoundRecord, vote: Exchange[Losses], replies: Iterable[Message]) -> None:
        answered, record = self._until_enough(pending, vote, replies, lambda n: self._loss_exchange(pending.slot, n))
        self._resolve(record, list(answered.replies.values()))

    def _advance(self, record: RoundRecord, models: Mapping[str, Vector], judged: Sequence[Losses]) -> None:
        if self.state.pending is not None:
            self._resolve(self.state.pending, judged)
        chains = self.state.chains.advanced(record.slot.block, models[MIXED], models[SEPARATE])
        self.state = replace(self.state, slot=record.slot, chains=chains, pending=record)

    def _resolve(self, record: RoundRecord, judged: Sequence[Losses]) -> None:
        """Choose u_bar of a round by its average local losses (lines 9 to 12), and fold it."""
        mixed = self._average_loss([losses.mixed for losses in judged], judged)
        separate = self._average_loss([losses.separate for losses in judged], judged)
        losses = {MIXED: mixed, SEPARATE: separate}
        self._fold(replace(record, losses=losses, chosen=choose(mixed, separate)))

    def _heads(self, block: int) -> dict[str, Vector]:
        return {MIXED: self.state.chains.mixed, SEPARATE: self.state.chains.separate[block]}

    def _train_exchange(self, slot: Slot, attempt: int, *, report_loss: bool = False) -> Exchange[Update]:
        return super()._train_exchange(slot, attempt, report_loss=self.state.pending is not None)

    def _loss_exchange(self, slot: Slot, attempt: int) -> Exchange[Losses]:
        return Exchange(
            self._orders(slot, attempt, report_loss=True),
            {chain: encode(model, self.layout) for chain, model in self._heads(slot.block).items()},
            read_losses,
            MessageType.EVALUATE,
            self.config.round_timeout,
        )
