"""The wire protocol, version 2: who a node is, and how values are read from messages.

This room alone knows the names of records and keys: ``orders`` has those that a server writes, ``updates`` those that a
node answers, ``arrays`` the models in both. What stays the same for a whole run travels once, with the run's
configuration. Readers trust nothing: whatever does not fit is a ``ProtocolError`` that says what and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import ConfigRecord, RecordDict

from perennial.common.command.errors import shown

_T = TypeVar("_T")

VERSION = 2
# More than this is no count of clients or examples on one node.
_MOST = 2**40
# Sums of thousands of these are still finite.
_LARGEST = 1e30


class ProtocolError(ValueError):
    """A message that does not follow the protocol."""


# --- Identity ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """What a node says of itself: the clients it hosts, and how many blocks their shards cover."""

    clients: tuple[int, ...]
    blocks: int


def write_query() -> RecordDict:
    return RecordDict({"query": ConfigRecord({"protocol": VERSION})})


def write_identity(identity: Identity) -> RecordDict:
    record = ConfigRecord({"protocol": VERSION, "clients": list(identity.clients), "blocks": identity.blocks})
    return RecordDict({"node": record})


def read_identity(content: RecordDict) -> Identity:
    record = record_of(content, "node", ConfigRecord)
    if (version := record.get("protocol")) != VERSION:
        raise ProtocolError(f"node speaks protocol {shown(version)}, this server {VERSION}")
    return Identity(client_ids(record), whole(record, "blocks", 1))


# --- Values -----------------------------------------------------------------------------------------------------------


def record_of(content: RecordDict, name: str, kind: type[_T]) -> _T:
    record = content.get(name)
    if not isinstance(record, kind):
        raise ProtocolError(f"{kind.__name__} {name!r} is missing")
    return record


def whole(record: Mapping[str, Any], key: str, least: int, most: int = _MOST) -> int:
    value = record.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"{key} must be a whole number in [{least}, {most}], got {shown(value)}")
    return value


def flag(record: Mapping[str, Any], key: str) -> bool:
    value = record.get(key)
    if not isinstance(value, bool):
        raise ProtocolError(f"{key} must be true or false, got {shown(value)}")
    return value


def loss(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST:
        # A loss of a user's own may be below 0: that of a density, say.
        raise ProtocolError(f"{key} must be a number in [-{_LARGEST:g}, {_LARGEST:g}], got {shown(value)}")
    return float(value)


def client_ids(record: Mapping[str, Any]) -> tuple[int, ...]:
    clients = record.get("clients")
    if (
        not isinstance(clients, list)
        or not clients
        or any(type(item) is not int or not 0 <= item < 2**31 for item in clients)
    ):
        raise ProtocolError(f"clients must be client ids from 0, got {shown(clients)}")
    if len(set(clients)) != len(clients):
        raise ProtocolError("clients has an id twice")
    return tuple(clients)
