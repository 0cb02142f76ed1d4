"""A data set of Flower Datasets as a source: anything that the library ``datasets`` has saved to disk."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data.block_partitioners import BlockPartitioner
from perennial.common.data.examples import Inputs, Signature, as_target
from perennial.common.data.row_shards import RowShards


@dataclass(frozen=True, kw_only=True)
class FlowerDataset:
    """A data set that was saved by ``save_to_disk``, with a split for training and, if there is one, one for the test.

    partitioner: one of ``perennial.partitioners``; its partitions are the clients. inputs, target: names of columns: of
    numbers, lists of equal shape, or images, which become uint8 of shape (channels, height, width).
    """

    path: Path | str
    partitioner: BlockPartitioner
    inputs: tuple[str, ...]
    target: str | None = None
    train: str = "train"
    test: str = "test"

    def open(self, config: RunConfig) -> RowShards:
        """Return the data set cut by the partitioner."""
        splits = self._splits()
        partitioner = copy.deepcopy(self.partitioner)
        partitioner.dataset = splits[self.train]
        clients, blocks = range(partitioner.num_partitions), range(partitioner.num_blocks)
        cuts = {(client, block): partitioner.rows(client, block) for client in clients for block in blocks}
        parts, tests = [splits[self.train]], [np.zeros(0, np.int64) for _ in blocks]
        if self.test in splits:
            # The test rows come after those for training, in the same arrays.
            parts.append(splits[self.test])
            tests = [len(parts[0]) + partitioner.test_rows(parts[1], block) for block in blocks]
        x: Inputs = tuple(self._array(parts, name) for name in self.inputs)
        y = None if self.target is None else as_target(self._array(parts, self.target), str(self.path))
        return RowShards(Signature.of(x, y, str(self.path)), x, y, tuple(clients), len(blocks), cuts, tuple(tests))

    def _splits(self) -> dict[str, Any]:
        from datasets import DatasetDict, load_from_disk

        try:
            found = load_from_disk(str(self.path))
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{self.path} cannot be read as a data set that was saved to disk: {reason}") from error
        splits = dict(found) if isinstance(found, DatasetDict) else {self.train: found}
        if self.train not in splits:
            raise InputError(f"{self.path} has no split {self.train!r}; its splits are {', '.join(splits)}")
        return splits

    def _array(self, parts: list[Any], name: str) -> NDArray[Any]:
        """Return a column of all splits, one below the other."""
        arrays = []
        for part in parts:
            if name not in part.column_names:
                columns = ", ".join(part.column_names)
                raise InputError(f"{self.path}: column {name} is not there; the columns are {columns}")
            values = np.asarray(part.select_columns([name]).with_format("numpy")[:][name])
            is_image = type(part.features[name]).__name__ == "Image"
            arrays.append(_channels_first(values) if is_image and values.ndim in (3, 4) else values)
        try:
            return np.concatenate(arrays)
        except ValueError as error:
            raise InputError(f"{self.path}: column {name} has other shapes in other splits: {error}") from error


def _channels_first(images: NDArray[Any]) -> NDArray[Any]:
    """Return images (n, h, w) or (n, h, w, channels) as (n, channels, h, w)."""
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))
