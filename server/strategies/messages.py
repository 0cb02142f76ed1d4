"""Messages of a round: records of each one's own, its slot in its config record, and the addresses of its nodes."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Slot

_SERVER_ROUND = "server-round"
# What clients find in the config record beside Flower's own key, and what a user's config may therefore not have.
SLOT_KEYS = ("cycle", "block", "block-name", "chain")
# What a terminal would take for a colour, and what follows the error itself in a traceback that Ray put together.
_COLOUR, _RAISED_AGAIN = re.compile(r"\x1b\[[0-9;]*m"), "\n\nThe above exception was the direct cause"


@dataclass(frozen=True)
class RecordNames:
    """What the inner strategy calls the records of a message. The defaults are Flower's."""

    arrays: str = "arrays"
    config: str = "config"

    @classmethod
    def of(cls, content: RecordDict, model: ArrayRecord) -> RecordNames:
        """Return the names of the record that has the model, and of the one that has Flower's keys."""
        arrays = [name for name, record in content.array_records.items() if set(record) == set(model)]
        return cls((arrays or list(content.array_records) or [cls.arrays])[0], _config_name(content))


def own_records(content: RecordDict) -> RecordDict:
    """Return the same content in records that nobody else has. The arrays in them are shared: they never change."""
    return RecordDict(
        {name: one.copy() if isinstance(one, ArrayRecord) else copy.deepcopy(one) for name, one in content.items()}
    )


def slotted(content: RecordDict, slot: Slot, block_name: str, chain: str) -> RecordDict:
    """Return the content in records of its own, with its slot and chain in its config record."""
    own = own_records(content)
    name = _config_name(own)
    record = own.config_records.get(name, ConfigRecord())
    # A chain counts its own rounds; what clients get is the round of the run, for both chains alike.
    record[_SERVER_ROUND] = slot.server_round
    record["cycle"], record["block"], record["block-name"], record["chain"] = slot.cycle, slot.block, block_name, chain
    own[name] = record
    return own


def place(message: Message, slot: Slot, block_name: str, chain: str) -> Message:
    """Give the message records of its own, with its slot and chain in its config record."""
    message.content = slotted(message.content, slot, block_name, chain)
    return message


def addressed(messages: Sequence[Message], nodes: Sequence[int], sender: str) -> list[Message]:
    """Return the messages' content, sent to ``nodes``: one message for each of them, in their order.

    ``sender`` may have chosen other nodes. If it has the same for all of them, that is for everybody; if it has
    something of its own for each of them, it must have something for every node of ``nodes``.
    """
    if not messages:
        return []
    first = messages[0]
    if all(one.content is first.content or one.content == first.content for one in messages):
        return [_to(node, first) for node in nodes]
    by_node = {message.metadata.dst_node_id: message for message in messages}
    for node in nodes:
        if node not in by_node:
            raise InputError(
                f"{sender} sends each node something of its own and chose other nodes than the mixed chain's strategy "
                f"(it has nothing for node {node}); let it take all nodes, or send all of them the same"
            )
    return [_to(node, by_node[node]) for node in nodes]


def nodes_of(messages: Iterable[Message]) -> list[int]:
    return [message.metadata.dst_node_id for message in messages]


def answerers(replies: Iterable[Message]) -> list[int]:
    """Return the nodes that answered without an error, each of them once."""
    return list(dict.fromkeys(reply.metadata.src_node_id for reply in replies if not reply.has_error()))


def first_error(replies: Iterable[Message]) -> str:
    """Return why the first reply with an error has one, on one line; '' if there is none."""
    reasons = [reply.error.reason or f"code {reply.error.code}" for reply in replies if reply.has_error()]
    return _one_line(reasons[0])[:300] if reasons else ""


def _one_line(reason: str) -> str:
    """Return a reason on one line: of the tracebacks that Flower's simulation gives, what the app raised."""
    text, raised, _ = _COLOUR.sub("", reason).partition(_RAISED_AGAIN)
    return text.rstrip().rpartition("\n")[2] if raised else " ".join(text.split())


def _to(node: int, message: Message) -> Message:
    metadata = message.metadata
    return Message(message.content, node, metadata.message_type, ttl=metadata.ttl, group_id=metadata.group_id or None)


def _config_name(content: RecordDict) -> str:
    """Return the name of the config record that has Flower's round, else of the first one, else Flower's own name."""
    records = content.config_records
    having = [name for name, record in records.items() if _SERVER_ROUND in record]
    return (having or list(records) or [RecordNames.config])[0]
