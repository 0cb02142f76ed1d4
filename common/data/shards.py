"""A folder of shards: what a device holds, and what a simulation can read instead of a named data set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from perennial.common.command.errors import InputError
from perennial.common.data import manifest, npz, timestamps
from perennial.common.data.datasets import Described, Shard, Shards
from perennial.common.data.examples import named

# Shards kept in memory; the paper's 100 clients of one block fit many times over.
_CACHED = 2048


class ShardFolder(Described):
    """Reads ``manifest.json`` at once and shards when they are asked for; fills ``Shards``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.signature, self.blocks, self.clients = manifest.read(folder)
        self._cache: OrderedDict[tuple[int, int], Shard] = OrderedDict()

    def shard(self, client: int, block: int) -> Shard:
        key = client, block
        if key not in self._cache:
            self._cache[key] = self._read(shard_path(self.folder, client, block))
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def test(self, block: int) -> Shard | None:
        path = test_path(self.folder, block)
        return self._read(path) if path.exists() else None

    def check(self, done: Callable[[], None] = lambda: None, *, timed: bool = True) -> None:
        """Read everything once, and call ``done`` after each shard; an InputError says what is wrong.

        timed: a client may have one file of samples with timestamps instead, as it may where a clock cuts it.
        """
        for client in self.clients:
            samples = shard_path(self.folder, client, 0).with_name(timestamps.FILE)
            if timed and samples.exists():
                timestamps.read_samples(samples, self.signature)
                continue
            for block in range(self.blocks):
                path = shard_path(self.folder, client, block)
                if samples.exists() and not path.exists():
                    raise InputError(f"{samples} is cut into blocks by a clock; set clock, or write {path.name}")
                self._read(path)
                done()
        for block in range(self.blocks):
            self.test(block)

    def _read(self, path: Path) -> Shard:
        x, y = self.signature.take(npz.read(path, self.signature.names), str(path))
        if not len(x[0]):
            raise InputError(f"{path} has no examples; a shard needs at least one")
        return Shard(x, y, np.arange(len(x[0]), dtype=np.int64))


def shard_path(folder: Path, client: int, block: int) -> Path:
    return folder / f"client-{client:05d}" / f"block-{block}.npz"


def test_path(folder: Path, block: int) -> Path:
    return folder / "test" / f"block-{block}.npz"


def write(folder: Path, shards: Shards, clients: Sequence[int], *, with_test: bool = True) -> None:
    """Write the shards of ``clients`` as a folder; the manifest comes last and makes it one."""
    for client in clients:
        shard_path(folder, client, 0).parent.mkdir(parents=True, exist_ok=True)
        for block in range(shards.blocks):
            shard = shards.shard(client, block)
            if not len(shard.rows):
                raise InputError(
                    f"client {client} has no examples of block {block}; a shard in a folder needs at least one"
                )
            _save(shard_path(folder, client, block), shard)
    for block in range(shards.blocks if with_test else 0):
        if (examples := shards.test(block)) is not None:
            test_path(folder, block).parent.mkdir(parents=True, exist_ok=True)
            _save(test_path(folder, block), examples)
    manifest.write(folder, shards.signature, shards.blocks, clients)


def _save(path: Path, shard: Shard) -> None:
    arrays = {name: array[shard.rows] for name, array in named(shard.x, shard.y).items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]
