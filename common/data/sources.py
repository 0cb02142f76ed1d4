"""Sources: where a run's data come from, if not from a data set by name or a folder of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import imported, is_name
from perennial.common.data.datasets import Shard, Shards
from perennial.common.data.examples import Signature
from perennial.common.data.timed_table import Table


class Source(Protocol):
    """What a user writes to bring data of any kind, and names as ``data: package.module:name``.

    The name is that of a source, or of a class of sources that is made without arguments. ``RowShards.of`` makes shards
    out of arrays.
    """

    def open(self, config: RunConfig) -> Shards:
        """Return the data as shards; the same ones whenever it is called with the same configuration."""


# By name, those that come with the project.
READY = {"chicago": "perennial.common.data.chicago:Chicago", "flights": "perennial.common.data.flights:Flights"}


def find(data: str) -> Source | None:
    """Return the source that the key ``data`` names; None if it names none."""
    if data in READY or is_name(data):
        found = imported("data", READY.get(data, data))
        return _made(found, data)
    if data.endswith((".yaml", ".yml")):
        return Table.from_file(Path(data))
    return None


def opened(source: Source, config: RunConfig) -> Shards:
    """Return the shards of a source, which are refused if they are none."""
    try:
        shards = source.open(config)
        signature, blocks, clients = shards.signature, shards.blocks, tuple(shards.clients)
        first = shards.shard(clients[0], 0)
    except InputError:
        raise
    except Exception as error:  # someone else's code: whatever it raises says that it does not fit
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InputError(f"data {config.data!r} cannot be opened: {reason}") from error
    if not isinstance(signature, Signature) or not isinstance(first, Shard) or blocks < 1:
        raise InputError(f"data {config.data!r} must open as shards with a signature, got {shown(shards)}")
    signature.check(
        tuple(x[first.rows] for x in first.x), None if first.y is None else first.y[first.rows], config.data
    )
    return shards


def _made(found: object, name: str) -> Source:
    try:
        source = found() if isinstance(found, type) else found
    except Exception as error:  # someone else's code, again
        raise InputError(f"data {name!r} could not be made without arguments: {error}") from error
    if not callable(getattr(source, "open", None)):
        raise InputError(f"data {name!r} must be a source, with a method open(config), got {type(source).__name__}")
    return source  # type: ignore[return-value]
