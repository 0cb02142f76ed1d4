"""Shards that are rows of the same arrays: what every table, and most data of a user's own, can be cut into.

Arrays: n examples; client, block (n,) integers from 0; test (n,) bool. Pure; imports neither flwr nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Described, Shard
from perennial.common.data.examples import Inputs, Signature, Targets, as_target
from perennial.common.data.partition import Rows
from perennial.common.wire.seeding import generator


@dataclass(frozen=True)
class RowShards(Described):
    """Fills ``Shards``. cuts: the rows of each (client, block); tests: the test rows of each block.

    owner: the client of each row; phase: how much of the cycle is over at its time, in [0, 1); None: not known.

    >>> x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 1, 0])
    >>> shards = RowShards.of((x,), y, client=np.array([0, 0, 1, 1]), block=np.array([0, 1, 0, 1]))
    >>> shards.shard(1, 0).rows
    array([2])
    """

    signature: Signature
    x: Inputs
    y: Targets
    clients: tuple[int, ...]
    blocks: int
    cuts: Mapping[tuple[int, int], Rows]
    tests: tuple[Rows, ...]
    owner: NDArray[Any] | None = None
    phase: NDArray[Any] | None = None

    @classmethod
    def of(
        cls,
        x: Inputs,
        y: Targets,
        *,
        client: NDArray[Any],
        block: NDArray[Any],
        test: NDArray[np.bool_] | None = None,
        phase: NDArray[Any] | None = None,
        client_names: Sequence[object] = (),
        block_names: Sequence[str] = (),
        may_be_empty: bool = False,
        shuffled: bool = False,
        seed: int = 0,
        where: str = "data",
    ) -> RowShards:
        """Cut examples by the client and the block of each; nothing is lost, nothing is there twice.

        test: which rows are test rows; those of a block, of all clients, are its test set. phase: how much of the cycle
        is over at the time of each, in [0, 1). client_names, block_names: what errors call them. may_be_empty: a client
        may have no rows of a block, and then takes no part in its rounds. shuffled: each client's rows are dealt to its
        blocks at random, so many to each as before.
        """
        signature, y = Signature.of(x, y, where), as_target(y, where)
        test = np.zeros(len(x[0]), np.bool_) if test is None else test
        for name, array, kinds in (("client", client, "iu"), ("block", block, "iu"), ("test", test, "b")):
            if array.dtype.kind not in kinds or array.shape != (len(x[0]),) or (len(array) and array.min() < 0):
                what = "true or false" if kinds == "b" else "an integer from 0 on"
                raise InputError(f"{where}: {name} must be {what} for each of the {len(x[0])} examples")
        clients = tuple(range(max(len(client_names), int(client.max(initial=-1)) + 1)))
        blocks = max(len(block_names), int(block.max(initial=-1)) + 1)
        rows = np.flatnonzero(~test)
        dealt = _shuffled(client[rows], block[rows], seed) if shuffled else block[rows]
        cuts = cut(rows, client[rows], dealt, len(clients), blocks)
        tested = np.flatnonzero(test)
        tests = tuple(tested[block[tested] == one] for one in range(blocks))
        for (owner, one), of_block in cuts.items():
            if not len(of_block) and not may_be_empty:
                lacking = f"client {_called(client_names, owner)} has no rows of block {_called(block_names, one)}"
                raise InputError(f"{where}: {lacking}; leave the client out, or widen the block")
        for one, of_test in enumerate(tests):
            if not len(of_test) and len(tested):
                raise InputError(f"{where}: block {_called(block_names, one)} has no test rows, other blocks have some")
        # Engines ask for rows one below the other, and would copy all of them in every order.
        x = tuple(np.ascontiguousarray(one) for one in x)
        return cls(signature, x, y, clients, blocks, cuts, tests, client, phase)

    def shard(self, client: int, block: int) -> Shard:
        return Shard(self.x, self.y, self.cuts[client, block])

    def test(self, block: int) -> Shard | None:
        return Shard(self.x, self.y, self.tests[block]) if len(self.tests[block]) else None


def cut(
    rows: Rows, client: NDArray[Any], block: NDArray[Any], clients: int, blocks: int
) -> dict[tuple[int, int], Rows]:
    """Return the rows of each client and block, in their order; client, block: those of each of ``rows``."""
    key = client.astype(np.int64) * blocks + block.astype(np.int64)
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(clients * blocks + 1))
    return {divmod(at, blocks): rows[order[bounds[at] : bounds[at + 1]]] for at in range(clients * blocks)}


def _shuffled(client: NDArray[Any], block: NDArray[Any], seed: int) -> NDArray[Any]:
    """Return the blocks such that every client has as many rows of each as before, at random places."""
    dealt = block.copy()
    for one in np.unique(client).tolist():
        own = np.flatnonzero(client == one)
        dealt[own] = generator(seed, "shuffle", one).permutation(block[own])
    return dealt


def _called(names: Sequence[object], index: int) -> object:
    return names[index] if index < len(names) else index
