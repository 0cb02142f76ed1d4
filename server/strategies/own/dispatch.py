"""How the orders of the project's own app travel: to the clients of a seeded cohort, read and counted with a quorum."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import RunError
from perennial.common.cycle.schedule import Slot
from perennial.common.wire.arrays import decode, encode, size_of
from perennial.common.wire.chains import MIXED, SEPARATE
from perennial.common.wire.layout import FLOAT, Layout
from perennial.common.wire.orders import Order
from perennial.common.wire.updates import Losses, Update, read_losses
from perennial.server.cohort.account import VOTE, Account
from perennial.server.cohort.exchange import Answer, Answered, Exchange, cannot_change, weights_of
from perennial.server.cohort.moves import bound_of
from perennial.server.cohort.roster import Roster
from perennial.server.strategies.carriers import Messages, Replies
from perennial.server.strategies.own.intake import Intake
from perennial.server.strategies.voting import Poll, Verdict

LOG = logging.getLogger("perennial")
_LONGEST_PAUSE = 10.0
_DOUBLINGS = 8


class Dispatch:
    """Draws the cohorts of a run, and is the carrier and the electorate of its strategy.

    where: tells the slot of the round under way. updates: what the last attempt at it brought, by client: sums of
    floats depend on order. Empty without a quorum. intake: has their models, or their mean.
    """

    # An update is added to a sum and let go when it arrives.
    reads_as_they_come = True

    def __init__(self, config: RunConfig, layout: Layout, roster: Roster, where: Callable[[], Slot]) -> None:
        self.config, self.layout, self.roster, self.where = config, layout, roster, where
        self.updates: list[Update] = []
        self.nodes: list[int] = []
        self.attempt = -1
        self._server_round = 0
        self._cohort: Mapping[int, tuple[int, ...]] = {}
        self._exchange: Exchange[Update]
        self.intake: Intake
        self._spent = Account()
        self._bound = bound_of(config)
        self._size_up = size_of(encode(np.zeros(layout.size, np.float32), layout, config.wire_up))
        # What the attempt before brought, at the round or the vote under way.
        self._before: Answered[Any] | None = None

    @property
    def advice(self) -> str:
        return f"are the clients well, or min-replies {self.config.min_replies:g} too high?"

    # --- Who trains ---------------------------------------------------------------------------------------------------

    def muster(self, server_round: int, grid: Grid) -> list[int]:
        """Draw the clients of the next attempt at a round, and return their nodes."""
        self.attempt = self.attempt + 1 if server_round == self._server_round else 0
        self._server_round = server_round
        if self.attempt:
            self.roster.gather(grid, 1)
        else:
            self._before = None
            self.roster.refresh(grid)
            self._spent = self._spent.plus(Account(quarantined=self.roster.held(server_round)))
        self._cohort = self.roster.cohort(server_round, self.attempt)
        self.nodes = list(self._cohort)
        return self.nodes

    # --- Training: a carrier ------------------------------------------------------------------------------------------

    def pack(
        self, messages: Messages, slot: Slot, block_name: str, losses: Mapping[str, RecordDict] | None = None
    ) -> list[Message]:
        """Return an order for each node, with the models of all chains; the messages of the chains bring just those."""
        models = {chain: one for listed in messages.values() for chain, one in _models(listed).items()}
        sent = self._sent(models)
        self.intake = Intake(self.config, self.layout, models, sent, self._bound)
        self._exchange = Exchange(
            self._orders(slot, self._cohort, report_loss=bool(losses)),
            sent,
            self.intake.read,
            MessageType.TRAIN,
            self.config.round_timeout,
            self.intake.far,
        )
        return self._exchange.send()

    def unpack(self, replies: Iterable[Message]) -> Replies:
        """Read and check the answers, and return those that count; none without a quorum."""
        answered = self._exchange.receive(replies)
        account, self._spent = self._spent.plus(self._accounted(self._exchange, answered)), Account()
        problem = self._problem(self._exchange, answered)
        if problem:
            self._give_up_if_hopeless(f"round {self._server_round}: {problem}", answered)
        self.intake.settle([] if problem else [self._cohort[node][0] for node in answered.replies])
        self.updates = [] if problem else list(answered.replies.values())
        messages = [] if problem else list(answered.messages.values())
        return Replies(dict.fromkeys(self._exchange.models, messages), {}, problem, account)

    # --- The vote: an electorate --------------------------------------------------------------------------------------

    def ask(self, poll: Poll, grid: Grid, attempts: int) -> Verdict:
        """Let the round's cohort of today judge both models; as often as it takes, since a quorum must answer."""
        losses, account = self._judged(poll.slot, poll.models, grid)
        return Verdict(losses, account)

    def count(self, replies: Mapping[str, Sequence[Message]]) -> dict[str, float] | None:
        """Return the average losses that came with the updates."""
        return self._average_losses([update.losses for update in self.updates]) if self.updates else None

    def judged(self, models: Mapping[str, ArrayRecord], grid: Grid) -> dict[str, float]:
        """Return the average losses of two models in the round under way, before it is trained."""
        losses, account = self._judged(self.where(), models, grid)
        self._spent = self._spent.plus(account)
        return losses

    def _judged(self, slot: Slot, models: Mapping[str, ArrayRecord], grid: Grid) -> tuple[dict[str, float], Account]:
        account, self._before, sent = Account(), None, self._sent(models)
        # A node that has died since the round began would be waited for.
        self.roster.refresh(grid)
        for attempt in count(1):
            cohort = self.roster.cohort(slot.server_round, attempt - 1)
            orders = self._orders(slot, cohort, report_loss=True)
            exchange = Exchange(orders, sent, read_losses, MessageType.EVALUATE, self.config.round_timeout)
            answered = exchange.receive(grid.send_and_receive(exchange.send(), timeout=self.config.round_timeout))
            account = account.plus(self._accounted(exchange, answered))
            problem = self._problem(exchange, answered)
            if not problem:
                return self._average_losses(list(answered.replies.values())), account
            text = f"round {slot.server_round}, the vote: {problem}"
            self._give_up_if_hopeless(text, answered)
            if attempt == self.config.round_attempts:
                raise RunError(f"{text}, {attempt} times in a row; {self.advice}")
            LOG.warning("%s; the vote is repeated", text)
            time.sleep(min(0.05 * 2 ** min(attempt, _DOUBLINGS), _LONGEST_PAUSE))
            self.roster.gather(grid, 1)
        raise AssertionError("attempts do not end by themselves")

    # --- What both share ----------------------------------------------------------------------------------------------

    def _sent(self, models: Mapping[str, ArrayRecord]) -> Mapping[str, ArrayRecord]:
        """Return models as they travel down."""
        if self.config.wire_down == FLOAT:
            return models
        return {
            chain: encode(decode(one, self.layout, chain), self.layout, self.config.wire_down)
            for chain, one in models.items()
        }

    def _orders(self, slot: Slot, cohort: Mapping[int, tuple[int, ...]], *, report_loss: bool) -> dict[int, Order]:
        return {
            node: Order(slot.server_round, slot.cycle, slot.block, clients, report_loss)
            for node, clients in cohort.items()
        }

    def _give_up_if_hopeless(self, problem: str, answered: Answered[Any]) -> None:
        """Repeat nothing that all nodes have failed in twice, by the same errors; a run without end waits on."""
        if self.config.round_attempts and cannot_change(self._before, answered):
            raise RunError(f"{problem}, and the same when it was repeated; mend the clients, then go on")
        self._before = answered

    def _problem(self, exchange: Exchange[Answer], answered: Answered[Answer]) -> str:
        """Return why an exchange has no quorum; '' if it has one."""
        asked = sum(len(order.clients) for order in exchange.orders.values())
        heard = _clients(exchange, answered)
        if heard and heard >= math.ceil(self.config.min_replies * asked - 1e-9):
            return ""
        reason = answered.rejections[0].reason if answered.rejections else "no node is there that may take part"
        return f"{heard} of {asked} clients answered ({reason})"

    def _accounted(self, exchange: Exchange[Answer], answered: Answered[Answer]) -> Account:
        """Return what an exchange cost and brought; strikes and doubts go to the roster."""
        is_train = exchange.message_type == MessageType.TRAIN
        server_round = next((order.server_round for order in exchange.orders.values()), 0)
        self.roster.judge(answered, server_round, trained=is_train)
        sizes = {chain: size_of(model) for chain, model in exchange.models.items()}
        down = {chain: size * len(exchange.orders) for chain, size in sizes.items()}
        rejected = sum(len(one.clients) for one in answered.rejections)
        if not is_train:
            return Account(rejected=rejected, rejections=answered.rejections, bytes_down={VOTE: sum(down.values())})
        asked = sum(len(order.clients) for order in exchange.orders.values())
        up = dict.fromkeys(sizes, self._size_up * len(answered.replies))
        accepted = tuple(sorted(client for node in answered.replies for client in exchange.orders[node].clients))
        return Account(
            asked, len(accepted), rejected, answered.rejections, bytes_down=down, bytes_up=up, accepted=accepted
        )

    def average(self, losses: Sequence[float], counts: Sequence[Losses]) -> float:
        """Return the average of one number of each node, by the rule by which models are averaged."""
        if self.config.aggregation == "trimmed-mean":
            cut = int(self.config.trim * len(losses))
            return math.fsum(sorted(losses)[cut : len(losses) - cut]) / (len(losses) - 2 * cut)
        if self.config.aggregation != "mean":
            # Krum has no meaning for numbers; the median bears as many liars.
            return float(np.median(losses))
        weights = weights_of(counts, self.config.weighting)
        return math.fsum(loss * weight for loss, weight in zip(losses, weights, strict=True)) / math.fsum(weights)

    def _average_losses(self, judged: Sequence[Losses]) -> dict[str, float]:
        return {
            MIXED: self.average([losses.mixed for losses in judged], judged),
            SEPARATE: self.average([losses.separate for losses in judged], judged),
        }


def _models(messages: Sequence[Message]) -> dict[str, ArrayRecord]:
    return dict(messages[0].content.array_records.items()) if messages else {}


def _clients(exchange: Exchange[Answer], answered: Answered[Answer]) -> int:
    return sum(len(exchange.orders[node].clients) for node in answered.replies)
