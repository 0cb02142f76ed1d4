"""How the chains of a round travel: each in a message of its own, or both in one message to ``both_chains(app)``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import Message, RecordDict

from perennial.common.command.errors import InputError, RunError, shown
from perennial.common.cycle.schedule import Slot
from perennial.common.wire.chains import CHAINS, MIXED
from perennial.common.wire.two_chains import Parts, read_parts, write_order
from perennial.server.cohort.account import NOTHING, Account
from perennial.server.strategies.messages import own_records, place

Messages = Mapping[str, Sequence[Message]]


@dataclass(frozen=True)
class Replies:
    """The replies by chain. losses: the replies to evaluating the models as they were sent, if that was asked.

    problem: why there are none, if the carrier knows. account: what the exchange cost and brought.
    """

    chains: dict[str, list[Message]] = field(default_factory=dict)
    losses: dict[str, list[Message]] = field(default_factory=dict)
    problem: str = ""
    account: Account = NOTHING


class Carrier(Protocol):
    """Makes messages to nodes out of the messages of chains, and tells the replies apart again.

    reads_as_they_come: ``unpack`` reads each reply once, and lets it go before it asks for the next.
    """

    @property
    def reads_as_they_come(self) -> bool: ...

    def pack(
        self, messages: Messages, slot: Slot, block_name: str, losses: Mapping[str, RecordDict] | None = None
    ) -> list[Message]:
        """Return what is sent in the round of a slot, with the slot in it.

        losses: what stands in for a chain's records when its model is judged as it arrives.
        """

    def unpack(self, replies: Iterable[Message]) -> Replies:
        """Return the replies to what was packed last, in the order in which they came."""


class Alone:
    """The messages of a strategy that has one chain."""

    reads_as_they_come = False

    def pack(
        self, messages: Messages, slot: Slot, block_name: str, losses: Mapping[str, RecordDict] | None = None
    ) -> list[Message]:
        return _placed(messages, slot, block_name).get(MIXED, [])

    def unpack(self, replies: Iterable[Message]) -> Replies:
        return Replies({MIXED: list(replies)})


class Apart:
    """A message for each chain. Nodes that get two answer two, and an answer names the message that it answers."""

    reads_as_they_come = False

    def __init__(self) -> None:
        self._sent: list[tuple[str, Message]] = []

    def pack(
        self, messages: Messages, slot: Slot, block_name: str, losses: Mapping[str, RecordDict] | None = None
    ) -> list[Message]:
        assert not losses, "models that travel apart are judged by messages of their own"
        placed = _placed(messages, slot, block_name)
        self._sent = [(chain, message) for chain, listed in placed.items() for message in listed]
        return [message for _, message in self._sent]

    def unpack(self, replies: Iterable[Message]) -> Replies:
        # Only now: a grid names messages when it sends them.
        chain_of = {message.metadata.message_id: chain for chain, message in self._sent}
        parted: dict[str, list[Message]] = {chain: [] for chain, _ in self._sent}
        for reply in replies:
            chain = chain_of.get(reply.metadata.reply_to_message_id)
            if chain is None or len(chain_of) < len(self._sent):
                raise RunError(
                    f"a reply of node {reply.metadata.src_node_id} answers no message that was configured here; a "
                    "subclass must send the messages of configure_train themselves, and the grid must name each of them"
                )
            parted[chain].append(reply)
        return Replies(parted)


class Together:
    """One message for both chains of a node."""

    reads_as_they_come = False

    def pack(
        self, messages: Messages, slot: Slot, block_name: str, losses: Mapping[str, RecordDict] | None = None
    ) -> list[Message]:
        packed = []
        for twins in _by_node(_placed(messages, slot, block_name)):
            message = next(iter(twins.values()))
            judged = {chain: own_records(records) for chain, records in (losses or {}).items() if chain in twins}
            parts = Parts({chain: twin.content for chain, twin in twins.items()}, judged)
            message.content = write_order(parts, block=slot.block, report_loss=bool(judged))
            packed.append(message)
        return packed

    def unpack(self, replies: Iterable[Message]) -> Replies:
        chains: dict[str, list[Message]] = {}
        losses: dict[str, list[Message]] = {}
        for reply in replies:
            if reply.has_error():
                for chain in CHAINS:
                    chains.setdefault(chain, []).append(reply)
                continue
            parts = read_parts(reply.content)
            if not parts.chains:
                raise InputError(
                    f"node {reply.metadata.src_node_id} answered {shown(sorted(reply.content))} and not both chains; "
                    "one_message=True needs app = both_chains(app) on the clients"
                )
            for chain, content in parts.chains.items():
                chains.setdefault(chain, []).append(with_content(reply, content))
            for chain, content in parts.losses.items():
                losses.setdefault(chain, []).append(with_content(reply, content))
        return Replies(chains, losses)


def with_content(reply: Message, content: RecordDict) -> Message:
    """Return the reply with other content."""
    part = copy.copy(reply)
    part.content = content
    return part


def _placed(messages: Messages, slot: Slot, block_name: str) -> dict[str, list[Message]]:
    return {chain: [place(one, slot, block_name, chain) for one in listed] for chain, listed in messages.items()}


def _by_node(messages: Messages) -> list[dict[str, Message]]:
    """Return the chains' messages to each node; a chain that has messages has one for every node, in the same order."""
    sent = {chain: listed for chain, listed in messages.items() if listed}
    return [dict(zip(sent, twins, strict=True)) for twins in zip(*sent.values(), strict=True)]
