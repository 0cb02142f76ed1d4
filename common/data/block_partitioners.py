"""Partitioners for Flower Datasets whose partitions come in blocks: one partition for each client, as Flower has it.

`load_partition(i)` is all that client i holds; `load_block(i, m)` is its shard of block m. The block of a round stands
in the config record of its messages.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from flwr_datasets.partitioner import Partitioner

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.data import partition, row_shards, table_columns
from perennial.common.data.partition import Rows
from perennial.common.data.timestamps import blocks_at


class BlockPartitioner(Partitioner):  # type: ignore[misc]
    """What the partitioners here have in common."""

    @property
    @abstractmethod
    def num_blocks(self) -> int:
        """Total number of blocks, M."""

    @abstractmethod
    def rows(self, partition_id: int, block: int) -> Rows:
        """Return the rows of the data set that are the partition's shard of a block."""

    @abstractmethod
    def test_rows(self, dataset: Any, block: int) -> Rows:
        """Return the rows of another data set of the same kind, a test split, that a block is judged on."""

    def load_partition(self, partition_id: int) -> Any:
        """Return all of a partition, block after block."""
        self._check(partition_id, 0)
        parts = (self.rows(partition_id, block).tolist() for block in range(self.num_blocks))
        return self.dataset.select(list(chain.from_iterable(parts)))

    def load_block(self, partition_id: int, block: int) -> Any:
        """Return a partition's shard of one block."""
        self._check(partition_id, block)
        return self.dataset.select(self.rows(partition_id, block))

    def load_test(self, dataset: Any, block: int) -> Any:
        """Return what a block is judged on, of a test split."""
        self._check(0, block)
        return dataset.select(self.test_rows(dataset, block))

    def _check(self, partition_id: int, block: int) -> None:
        bounds = {"partition_id": (partition_id, self.num_partitions), "block": (block, self.num_blocks)}
        for what, (value, bound) in bounds.items():
            if not 0 <= value < bound:
                raise InputError(f"{what} must be in [0, {bound}), got {value}")


class BlockCyclicPartitioner(BlockPartitioner):
    """The paper's partition: a block is a set of labels, and each block is cut in sequence into one shard a client.

    partition_by: the column of the labels. The rest as the keys of the same names in an experiment file.

    >>> from flwr_datasets import FederatedDataset
    >>> partitioner = BlockCyclicPartitioner(num_partitions=100, num_blocks=5, labels_per_block=2)
    >>> fds = FederatedDataset(dataset="cifar10", partitioners={"train": partitioner})  # doctest: +SKIP
    >>> night = fds.partitioners["train"].load_block(partition_id=7, block=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        num_partitions: int,
        num_blocks: int,
        labels_per_block: int,
        partition_by: str = "label",
        *,
        block_skew: float = 1.0,
        client_skew: float = 1.0,
        shuffled: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("num_partitions", num_partitions), ("num_blocks", num_blocks)):
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        for name, skew in (("block_skew", block_skew), ("client_skew", client_skew)):
            if not 0 <= skew <= 1:
                raise InputError(f"{name} must be in [0, 1], got {skew}")
        self._clients, self._blocks, self._column = num_partitions, num_blocks, partition_by
        self._options: dict[str, Any] = {
            "labels_per_block": labels_per_block,
            "block_skew": block_skew,
            "client_skew": client_skew,
            "shuffled": shuffled,
            "seed": seed,
        }

    @property
    def num_partitions(self) -> int:
        return self._clients

    @property
    def num_blocks(self) -> int:
        return self._blocks

    def rows(self, partition_id: int, block: int) -> Rows:
        return self._partition.shard(partition_id, block)

    def test_rows(self, dataset: Any, block: int) -> Rows:
        return partition.cut_test(_labels(dataset, self._column), self._partition.tested[block])

    @cached_property
    def _partition(self) -> partition.Partition:
        labels = _labels(self.dataset, self._column)
        classes = int(labels.max()) + 1
        return partition.cut(labels, classes=classes, blocks=self._blocks, clients=self._clients, **self._options)


class TimeBlockPartitioner(BlockPartitioner):
    """Rows that carry a time: the values of a column are the partitions, and the clock says a row's block.

    partition_by: the column of the clients; partitions are its values, sorted. time_by: the column of the times: ISO
    8601, timestamps or seconds since 1970 in UTC. A time without an offset is one of the wall clock in ``timezone``.
    clock: the blocks' windows, as docs/clock.md has them. may_be_empty: a client may have no rows of a block.

    >>> partitioner = TimeBlockPartitioner("station", "when", "weekday: Mon-Fri, weekend: Sat,Sun", "America/Chicago")
    >>> partitioner.num_blocks
    2
    """

    def __init__(
        self, partition_by: str, time_by: str, clock: str, timezone: str = "UTC", *, may_be_empty: bool = False
    ) -> None:
        super().__init__()
        self._client_column, self._time_column, self._may_be_empty = partition_by, time_by, may_be_empty
        self._clock = ClockSpec.parse(clock, timezone)

    @property
    def num_partitions(self) -> int:
        return len(self._cut[0])

    @property
    def num_blocks(self) -> int:
        return len(self._clock.names)

    @property
    def block_names(self) -> tuple[str, ...]:
        """The names of the blocks, as the clock has them."""
        return self._clock.names

    @property
    def partition_names(self) -> list[object]:
        """The value that each partition has in the column of the clients."""
        return self._cut[0]

    def rows(self, partition_id: int, block: int) -> Rows:
        return self._cut[1][partition_id, block]

    def test_rows(self, dataset: Any, block: int) -> Rows:
        return np.flatnonzero(blocks_at(self._clock, self._seconds(dataset)) == block)

    @cached_property
    def _cut(self) -> tuple[list[object], dict[tuple[int, int], Rows]]:
        """Return the clients' names, and the rows of each (client, block)."""
        seconds = self._seconds(self.dataset)
        client, names = table_columns.codes(_column(self.dataset, self._client_column), self._client_column, _WHERE)
        blocks = blocks_at(self._clock, seconds)
        cuts = row_shards.cut(np.arange(len(client)), client, blocks, len(names), self.num_blocks)
        for (owner, block), rows in cuts.items():
            if not len(rows) and not self._may_be_empty:
                raise InputError(f"partition {names[owner]} has no rows of block {self._clock.names[block]}; "
                                 "leave it out, widen the block, or say may_be_empty=True")  # fmt: skip
        return names, cuts

    def _seconds(self, dataset: Any) -> Any:
        column = _column(dataset, self._time_column)
        return table_columns.times(column, self._time_column, _WHERE, self._clock.zone)


_WHERE = "the data set"


def _labels(dataset: Any, name: str) -> Any:
    labels = table_columns.numbers(_column(dataset, name), name, _WHERE)
    if labels.dtype.kind != "i" or not len(labels) or labels.min() < 0:
        raise InputError(f"column {name} must hold labels, whole numbers from 0 on")
    return labels


def _column(dataset: Any, name: str) -> Any:
    """Return a column of a data set of Hugging Face as an array."""
    if name not in dataset.column_names:
        raise InputError(f"column {name} is not there; the columns are {', '.join(dataset.column_names)}")
    found = dataset.select_columns([name]).with_format("arrow")[:]
    return table_columns.from_arrow(found.column(name), name, _WHERE)
