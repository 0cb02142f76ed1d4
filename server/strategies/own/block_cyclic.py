"""What FedAvg, MM-PSGD and MC-PSGD share: rounds in slots, cohorts, quorum, and Flower's hooks around the maths."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import RunError
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.common.wire.arrays import encode, size_of
from perennial.common.wire.chains import MIXED, SEPARATE, Vector
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order
from perennial.common.wire.protocol import ProtocolError
from perennial.common.wire.updates import Losses, Update, read_update
from perennial.server import psgd
from perennial.server.cohort.exchange import Answer, Answered, Exchange, weights_of
from perennial.server.cohort.roster import Roster
from perennial.server.run.readers import Reader
from perennial.server.run.state import RoundRecord, RunState

LOG = logging.getLogger("perennial")


class Observer(Protocol):
    """What is told of a run as it goes."""

    def folded(self, state: RunState, record: RoundRecord) -> None:
        """A round is in the predictors; called once a round, in order."""

    def finished(self, state: RunState) -> None:
        """A round is over and ``state`` is what the next one starts from."""


class ScheduleOver(Exception):
    """No round begins any more: how a schedule without a known length ends Flower's loop."""


class BlockCyclic(Strategy):
    """Trains the chains named in ``chains`` through the schedule, and folds each round into every reader's predictors.

    Flower's own model and metrics arguments stay unused: the state has them, and Flower would keep every round's.
    """

    chains: tuple[str, ...] = (MIXED,)

    def __init__(
        self,
        config: RunConfig,
        schedule: Schedule,
        layout: Layout,
        readers: Sequence[Reader],
        state: RunState,
        roster: Roster,
        observer: Observer,
    ) -> None:
        self.config, self.schedule, self.layout, self.readers = config, schedule, layout, tuple(readers)
        self.state, self.roster, self.observer = state, roster, observer
        self._next = schedule.after(state.slot)
        self._train: Exchange[Update]
        self._grid: Grid
        self._started = time.perf_counter()

    # --- Flower's hooks -----------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._next is None:
            raise ScheduleOver
        self._grid = grid
        self._started = time.perf_counter()
        self.roster.refresh(grid)
        self._train = self._train_exchange(self._next, 0)
        return self._train.send()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        slot = self._next
        assert slot is not None
        record = RoundRecord(slot, quarantined=self.roster.held(slot.server_round))
        answered, record = self._until_enough(record, self._train, replies, lambda n: self._train_exchange(slot, n))
        updates = list(answered.replies.values())
        counts = [update.losses for update in updates]
        models = {chain: self._average([u.models[chain] for u in updates], counts) for chain in self.chains}
        losses = {chain: self._average_loss([u.train_losses[chain] for u in updates], counts) for chain in self.chains}
        record = replace(record, train_losses=losses, seconds=time.perf_counter() - self._started)
        self._advance(record, models, counts)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._next = self.schedule.after(self.state.slot)
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        self.observer.finished(self.state)
        return None

    def summary(self) -> None:
        LOG.debug("%s: %d rounds done", type(self).__name__, self.state.slot.server_round if self.state.slot else 0)

    # --- One round ----------------------------------------------------------------------------------------------------

    def _advance(self, record: RoundRecord, models: Mapping[str, Vector], judged: Sequence[Losses]) -> None:
        """Carry the chains on and fold the round: without a second chain there is nothing to choose."""
        chains = self.state.chains.advanced(record.slot.block, models[MIXED])
        self.state = replace(self.state, slot=record.slot, chains=chains)
        self._fold(record)

    def _fold(self, record: RoundRecord) -> None:
        """Fold the heads of the chains, which are the models of ``record``'s round, into the predictors."""
        predictors = tuple(
            reader.read(old, record.slot, self.state.chains, record.chosen)
            for reader, old in zip(self.readers, self.state.predictors, strict=True)
        )
        self.state = replace(self.state, predictors=predictors, pending=None)
        self.observer.folded(self.state, record)

    def _heads(self, block: int) -> dict[str, Vector]:
        """Return the models that a round of ``block`` starts from."""
        return {MIXED: self.state.chains.mixed}

    def _train_exchange(self, slot: Slot, attempt: int, *, report_loss: bool = False) -> Exchange[Update]:
        heads = self._heads(slot.block)

        def read(content: RecordDict, order: Order) -> Update:
            update = read_update(content, order, self.layout, self.chains)
            self._check_norm(update, heads)
            return update

        return Exchange(
            self._orders(slot, attempt, report_loss=report_loss),
            {chain: encode(model, self.layout) for chain, model in heads.items()},
            read,
            MessageType.TRAIN,
            self.config.round_timeout,
        )

    def _orders(self, slot: Slot, attempt: int, *, report_loss: bool) -> dict[int, Order]:
        cohort = self.roster.cohort(slot.server_round, attempt)
        return {
            node: Order(slot.server_round, slot.cycle, slot.block, clients, report_loss)
            for node, clients in cohort.items()
        }

    def _check_norm(self, update: Update, heads: Mapping[str, Vector]) -> None:
        bound = self.config.max_update_norm
        for chain, model in update.models.items() if bound else ():
            norm = float(np.linalg.norm(model.astype(np.float64) - heads[chain]))
            if norm > bound:
                raise ProtocolError(f"{chain}: the update moves the model by {norm:.6g}, max-update-norm is {bound:g}")

    def _until_enough(
        self,
        record: RoundRecord,
        exchange: Exchange[Answer],
        replies: Iterable[Message],
        again: Callable[[int], Exchange[Answer]],
    ) -> tuple[Answered[Answer], RoundRecord]:
        """Return the first exchange that has a quorum, and the record with what all attempts cost."""
        attempt = 0
        while True:
            answered = exchange.receive(replies)
            record = self._accounted(record, exchange, answered)
            asked = sum(len(order.clients) for order in exchange.orders.values())
            heard = sum(len(exchange.orders[node].clients) for node in answered.replies)
            if heard and heard >= math.ceil(self.config.min_replies * asked - 1e-9):
                return answered, record
            attempt += 1
            reason = answered.rejections[0].reason if answered.rejections else "no node is there that may take part"
            problem = f"round {record.slot.server_round}: {heard} of {asked} clients answered ({reason})"
            if attempt == self.config.round_attempts:
                bound = self.config.min_replies
                raise RunError(
                    f"{problem}, {attempt} times in a row; are the clients well, or min-replies {bound:g} too high?"
                )
            LOG.warning("%s; the round is repeated", problem)
            time.sleep(min(0.05 * 2 ** min(attempt, 8), 10.0))
            self.roster.gather(self._grid, 1)
            exchange = again(attempt)
            replies = self._grid.send_and_receive(exchange.send(), timeout=self.config.round_timeout)

    def _accounted(self, record: RoundRecord, exchange: Exchange[Answer], answered: Answered[Answer]) -> RoundRecord:
        for rejection in answered.rejections:
            if rejection.bad:
                self.roster.quarantine.reject(self.roster.first_client(rejection.node), record.slot.server_round)
            if rejection.failed:
                self.roster.doubt(rejection.node)
        is_train = exchange.message_type == MessageType.TRAIN
        # A sensible vote makes no wrong update good.
        for node in answered.replies if is_train else ():
            self.roster.quarantine.accept(self.roster.first_client(node))
        down, up = dict(record.bytes_down), dict(record.bytes_up)
        for chain, model in exchange.models.items():
            size = size_of(model)
            # A vote of its own is a cost of the separate chain, whichever model it carries.
            payer = chain if is_train else SEPARATE
            down[payer] = down.get(payer, 0) + size * len(exchange.orders)
            up[chain] = up.get(chain, 0) + size * len(answered.replies) * is_train
        clients = sorted(client for node in answered.replies for client in exchange.orders[node].clients)
        return replace(
            record,
            accepted=tuple(clients) if is_train else record.accepted,
            attempts=record.attempts + is_train,
            clients_asked=record.clients_asked + is_train * sum(len(o.clients) for o in exchange.orders.values()),
            clients_answered=record.clients_answered
            + is_train * sum(len(exchange.orders[node].clients) for node in answered.replies),
            clients_rejected=record.clients_rejected + sum(len(one.clients) for one in answered.rejections),
            rejections=tuple({one.node: one for one in record.rejections + answered.rejections}.values()),
            bytes_down=down,
            bytes_up=up,
        )

    # --- Averages over replies ----------------------------------------------------------------------------------------

    def _average(self, models: Sequence[Vector], counts: Sequence[Losses]) -> Vector:
        if self.config.aggregation == "median":
            return psgd.median(models)
        if self.config.aggregation == "trimmed-mean":
            return psgd.trimmed_mean(models, self.config.trim)
        return psgd.mean(models, weights_of(counts, self.config.weighting))

    def _average_loss(self, losses: Sequence[float], counts: Sequence[Losses]) -> float:
        if self.config.aggregation == "median":
            return float(np.median(losses))
        if self.config.aggregation == "trimmed-mean":
            cut = psgd.trimmed(self.config.trim, len(losses))
            return math.fsum(sorted(losses)[cut : len(losses) - cut]) / (len(losses) - 2 * cut)
        weights = weights_of(counts, self.config.weighting)
        return math.fsum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / math.fsum(weights)
