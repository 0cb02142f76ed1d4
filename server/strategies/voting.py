"""The vote of MC-PSGD: the nodes that trained judge both models, and the smaller average loss wins (lines 8 to 10)."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from perennial.common.command.errors import InputError, RunError, shown
from perennial.common.cycle.schedule import Slot
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE
from perennial.server.cohort.account import NOTHING, Account
from perennial.server.psgd import choose
from perennial.server.strategies.carriers import Carrier
from perennial.server.strategies.messages import RecordNames, first_error

LOG = logging.getLogger("flwr")
VOTE_WEIGHTS = ("examples", "nodes")


@dataclass(frozen=True)
class Poll:
    """What is voted on: the models of the round of a slot. trained: the nodes that made them.

    names, config: of the messages that ask; timeout: how long they wait.
    """

    slot: Slot
    block_name: str
    models: Mapping[str, ArrayRecord]
    trained: Sequence[int]
    names: RecordNames
    config: ConfigRecord
    timeout: float

    @property
    def where(self) -> str:
        return f"round {self.slot.server_round}, block {self.block_name}"


@dataclass(frozen=True)
class Verdict:
    """Each chain's average loss; None: nobody judged both models. account: what it cost to ask."""

    losses: Mapping[str, float] | None
    account: Account = NOTHING


class Electorate(Protocol):
    """Who judges both models of a round, and how their losses are averaged (lines 8 and 9)."""

    def ask(self, poll: Poll, grid: Grid, attempts: int) -> Verdict:
        """Broadcast both models, and return the average of the losses that come back."""

    def count(self, replies: Mapping[str, Sequence[Message]]) -> Mapping[str, float] | None:
        """Return each chain's average over losses that came by themselves; None: nobody judged both models."""


class Trainers:
    """The nodes that trained the models, by the ``evaluate`` of their own app."""

    def __init__(self, carrier: Carrier, loss_key: str, weight_key: str | None) -> None:
        self._carrier, self._loss_key, self._weight_key = carrier, loss_key, weight_key

    def ask(self, poll: Poll, grid: Grid, attempts: int) -> Verdict:
        """Ask, and ask again if nobody judges both models, ``attempts`` times in all."""
        for _ in range(attempts):
            asked = ballots(poll.models, poll.trained, poll.names, poll.config)
            packed = self._carrier.pack(asked, poll.slot, poll.block_name)
            replies = list(grid.send_and_receive(packed, timeout=poll.timeout))
            losses = self.count(self._carrier.unpack(replies).chains)
            if losses is not None:
                return Verdict(losses)
            problem = first_error(replies) or f"{len(replies)} replies"
            LOG.warning("%s: no node judged both models (%s)", poll.where, problem)
        return Verdict(None)

    def count(self, replies: Mapping[str, Sequence[Message]]) -> dict[str, float] | None:
        return average_losses(replies, self._loss_key, self._weight_key)


def ballots(
    models: Mapping[str, ArrayRecord], nodes: Sequence[int], names: RecordNames, config: ConfigRecord
) -> dict[str, list[Message]]:
    """Return the messages by which ``nodes`` are asked to evaluate each chain's model (line 8)."""
    return {
        chain: [
            Message(
                RecordDict({names.arrays: model.copy(), names.config: copy.deepcopy(config)}),
                node,
                MessageType.EVALUATE,
            )
            for node in nodes
        ]
        for chain, model in models.items()
    }


def average_losses(
    replies: Mapping[str, Sequence[Message]], loss_key: str, weight_key: str | None
) -> dict[str, float] | None:
    """Return each chain's average local loss (line 9) over the nodes that answered for both; None: nobody did.

    weight_key: the metric by which nodes are weighed; None: each node alike. An average of losses that are not all
    finite is not finite.
    """
    metrics = {chain: _metrics(replies.get(chain, ())) for chain in CHAINS}
    voters = [node for node in metrics[MIXED] if node in metrics[SEPARATE]]
    if not voters:
        return None
    weights = {node: _weight(metrics[MIXED][node], weight_key, node) for node in voters}
    total = math.fsum(weights.values())
    if total <= 0:
        raise InputError(f"the vote has no weight: {weight_key!r} is 0 on all of its {len(voters)} nodes")

    def average(chain: str) -> float:
        terms = [
            _loss(metrics[chain][node], loss_key, node) * (weight / total) for node, weight in weights.items() if weight
        ]
        # Exact, so that the order in which replies come changes nothing; what is not finite is only ever shown.
        return math.fsum(terms) if all(map(math.isfinite, terms)) else sum(terms)

    return {chain: average(chain) for chain in CHAINS}


def winner(losses: Mapping[str, float], where: str) -> str:
    """Return the chain with the smaller average loss (line 10). ``where`` names round and block.

    A tie goes to the mixed chain, and a chain whose loss is not finite loses.
    """
    lost = [chain for chain in CHAINS if not math.isfinite(losses[chain])]
    if len(lost) == 2:
        raise RunError(
            f"{where}: the losses of both chains are not finite (mixed {losses[MIXED]}, separate {losses[SEPARATE]}); "
            "is the learning rate too high?"
        )
    if lost:
        LOG.warning("%s: the loss of the %s chain is %s; the other chain is folded", where, lost[0], losses[lost[0]])
        return SEPARATE if lost[0] == MIXED else MIXED
    return choose(losses[MIXED], losses[SEPARATE])


def _metrics(replies: Sequence[Message]) -> dict[int, dict[str, Any]]:
    """Return the metrics of each node that answered without an error."""
    found = {}
    for reply in replies:
        if not reply.has_error():
            records = reply.content.metric_records.values()
            found[reply.metadata.src_node_id] = {name: one for record in records for name, one in record.items()}
    return found


def _loss(metrics: Mapping[str, Any], key: str, node: int) -> float:
    return _number(metrics, key, node, "evaluate", "give MCPSGD the right loss_key")


def _weight(metrics: Mapping[str, Any], key: str | None, node: int) -> float:
    if key is None:
        return 1.0
    weight = _number(metrics, key, node, "evaluate", 'vote_weights="nodes" needs no such key')
    if not 0 <= weight < math.inf:
        raise InputError(f"node {node}: {key!r} must be a number of at least 0 to weigh its vote, got {weight}")
    return weight


def _number(metrics: Mapping[str, Any], key: str, node: int, function: str, remedy: str) -> float:
    value = metrics.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        there = f"it has {', '.join(map(repr, metrics)) or 'no metrics'}" if value is None else f"it is {shown(value)}"
        raise InputError(f"node {node}: what {function} answered has no number {key!r} ({there}); {remedy}")
    return float(value)
