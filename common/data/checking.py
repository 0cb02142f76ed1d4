"""All data that a command can see, checked before the first round: what is wrong with it is said now, in one line."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import numpy as np

from perennial.common.command.errors import InputError, shown
from perennial.common.data.datasets import CutDataset, Shard, Shards
from perennial.common.data.examples import Signature
from perennial.common.data.row_shards import RowShards
from perennial.common.data.shards import ShardFolder
from perennial.common.data.source import NoData
from perennial.common.data.timed import TimedFolder

LOG = logging.getLogger("perennial")
_SECONDS_BEFORE_NOTES = 5.0


def check_data(several: Iterable[Shards]) -> None:
    """Read every shard and every test set once; an InputError says what is wrong, and where.

    Passes of an experiment often have the same folder, which is read for the first one alone.
    """
    seen: set[tuple[object, ...]] = set()
    for shards in several:
        # These were checked whole when they were cut out of their arrays.
        if isinstance(shards, CutDataset | RowShards | NoData):
            continue
        count = _Count(len(shards.clients) * shards.blocks)
        if not isinstance(shards, ShardFolder | TimedFolder):
            _check_source(shards, count)
        elif (key := (type(shards), shards.folder)) not in seen:
            seen.add(key)
            if isinstance(shards, TimedFolder):
                shards.check(count)
            else:
                shards.check(count, timed=False)


class _Count:
    """Tells how far a check is, from time to time."""

    def __init__(self, total: int) -> None:
        self._done, self._total, self._said_at = 0, total, time.monotonic()

    def __call__(self) -> None:
        self._done += 1
        if time.monotonic() - self._said_at > _SECONDS_BEFORE_NOTES:
            self._said_at = time.monotonic()
            LOG.info("checking the data: %d of %d shards", self._done, self._total)


def _check_source(shards: Shards, count: _Count) -> None:
    """Check what a source of a user's own gives for each client and block."""
    for client in shards.clients:
        for block in range(shards.blocks):
            where = f"data: client {client}, block {block}"
            try:
                shard = shards.shard(client, block)
            except InputError:
                raise
            except Exception as error:  # someone else's code: whatever it raises says that the shard is not there
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                raise InputError(f"{where} cannot be opened: {reason}") from error
            _check_rows(shard, shards.signature, where)
            count()
    for block in range(shards.blocks):
        if (test := shards.test(block)) is not None:
            _check_rows(test, shards.signature, f"data: the test set of block {block}")


def _check_rows(shard: Shard, signature: Signature, where: str) -> None:
    rows = np.asarray(shard.rows)
    examples = len(shard.x[0])
    if rows.dtype.kind not in "iu" or rows.ndim != 1 or (len(rows) and not 0 <= rows.min() <= rows.max() < examples):
        raise InputError(f"{where}: rows must be whole numbers in [0, {examples}), got {shown(rows)}")
    signature.check(tuple(x[rows] for x in shard.x), None if shard.y is None else shard.y[rows], where)
