"""What a model is told beside an example: the block that the example is of, or its time. Pure.

What is told is one more input, the last one, for every example of a shard or a test set. Arrays: n examples, M blocks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Described, Shard, Shards
from perennial.common.data.examples import BLOCK, ArrayType
from perennial.common.data.row_shards import RowShards


def telling(shards: Shards, told: str, *, shuffled: bool = False) -> Shards:
    """Return ``shards`` whose examples have what ``told`` names, "block" or "time", as an input; "none": as they are.

    shuffled: the rows of a shard are of any block.
    """
    if told == "none":
        return shards
    if told == BLOCK:
        if shuffled:
            raise InputError("told: block needs data that are not shuffled, whose shards are of one block each")
        return ToldShards(shards, told, np.eye(shards.blocks, dtype=np.float32)[:, None])
    if not isinstance(shards, RowShards) or shards.phase is None:
        raise InputError("told: time needs data with a time for each example, as chicago, flights or a table")
    angle = 2 * np.pi * shards.phase
    times = np.column_stack([np.sin(angle), np.cos(angle)]).astype(np.float32)
    return ToldShards(shards, told, np.broadcast_to(times, (shards.blocks, *times.shape)))


class ToldShards(Described):
    """Fills ``Shards``. facts: (M, 1 or n, numbers), what examples of a block are told, each alike or row by row."""

    def __init__(self, plain: Shards, told: str, facts: NDArray[np.float32]) -> None:
        self.plain, self._facts = plain, facts
        kind = ArrayType(("float32",), facts.shape[2:])
        self.signature = replace(plain.signature, x=(*plain.signature.x, kind), told=told)
        self.blocks, self.clients = plain.blocks, plain.clients

    def shard(self, client: int, block: int) -> Shard:
        return self._told(self.plain.shard(client, block), block)

    def test(self, block: int) -> Shard | None:
        found = self.plain.test(block)
        return None if found is None else self._told(found, block)

    def _told(self, shard: Shard, block: int) -> Shard:
        # A view: nothing is copied for each example.
        fact = np.broadcast_to(self._facts[block], (len(shard.x[0]), *self._facts.shape[2:]))
        return replace(shard, x=(*shard.x, fact))
