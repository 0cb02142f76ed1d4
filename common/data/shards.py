"""A folder of shards: what a device holds, and what a simulation can read instead of a named data set."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError, shown
from perennial.common.data import npz, timestamps
from perennial.common.data.datasets import Shard, Shards, check_examples

FORMAT = 1
# Shards kept in memory; the paper's 100 clients of one block fit many times over.
_CACHED = 2048


class ShardFolder:
    """Reads ``manifest.json`` at once and shards when they are asked for; fills ``Shards``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shape, self.classes, self.blocks, self.clients = _manifest(folder / "manifest.json")
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

    def check(self) -> None:
        """Read every shard once, so that a device says at its start what is wrong with its data."""
        for client in self.clients:
            timed = shard_path(self.folder, client, 0).with_name(timestamps.FILE)
            if timed.exists():
                samples = timestamps.read_samples(timed)
                self.check_fit(samples.x, samples.y, timed)
                continue
            for block in range(self.blocks):
                self.shard(client, block)

    def check_fit(self, x: NDArray[Any], y: NDArray[np.int64], path: Path) -> None:
        """Refuse examples of another shape or with other labels than the manifest's."""
        if x.shape[1:] != self.shape:
            raise InputError(f"{path}: examples have shape {x.shape[1:]}, the manifest says {self.shape}")
        if len(y) and int(y.max()) >= self.classes:
            raise InputError(f"{path}: label {int(y.max())} is outside the manifest's [0, {self.classes})")

    def _read(self, path: Path) -> Shard:
        arrays = npz.read(path, ("x", "y"))
        x, y = arrays["x"], arrays["y"].astype(np.int64) if arrays["y"].dtype.kind in "iu" else arrays["y"]
        check_examples(x, y, str(path))
        self.check_fit(x, y, path)
        if not len(y):
            raise InputError(f"{path} has no examples; a shard needs at least one")
        return Shard(x, y, np.arange(len(y), dtype=np.int64))


def shard_path(folder: Path, client: int, block: int) -> Path:
    return folder / f"client-{client:05d}" / f"block-{block}.npz"


def test_path(folder: Path, block: int) -> Path:
    return folder / "test" / f"block-{block}.npz"


def write(folder: Path, shards: Shards, clients: Sequence[int], *, with_test: bool = True) -> None:
    """Write the shards of ``clients`` as a folder; the manifest comes last and makes it one."""
    for client in clients:
        shard_path(folder, client, 0).parent.mkdir(parents=True, exist_ok=True)
        for block in range(shards.blocks):
            _save(shard_path(folder, client, block), shards.shard(client, block))
    for block in range(shards.blocks if with_test else 0):
        if (examples := shards.test(block)) is not None:
            test_path(folder, block).parent.mkdir(parents=True, exist_ok=True)
            _save(test_path(folder, block), examples)
    manifest = {
        "format": FORMAT,
        "blocks": shards.blocks,
        "classes": shards.classes,
        "shape": list(shards.shape),
        "clients": list(clients),
    }
    partial = folder / f"manifest.{os.getpid()}.json"
    partial.write_text(json.dumps(manifest) + "\n")
    partial.replace(folder / "manifest.json")


def _save(path: Path, shard: Shard) -> None:
    np.savez(path, x=shard.x[shard.rows], y=shard.y[shard.rows])


def _manifest(path: Path) -> tuple[tuple[int, ...], int, int, tuple[int, ...]]:
    """Return shape, classes, blocks and clients."""
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"{path.parent} is not a folder of shards: {path.name} is missing; `flower-simulation shards` writes one"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(f"{path}: format must be {FORMAT}, got {shown(found)}")
    shape = _positive_integers(manifest, "shape", path)
    clients = _positive_integers(manifest, "clients", path, least=0)
    if len(set(clients)) != len(clients):
        raise InputError(f"{path}: clients has an id twice")
    classes, blocks = (_positive_integers({key: [manifest.get(key)]}, key, path)[0] for key in ("classes", "blocks"))
    return shape, classes, blocks, tuple(sorted(clients))


def _positive_integers(manifest: dict[str, Any], key: str, path: Path, least: int = 1) -> tuple[int, ...]:
    value = manifest.get(key)
    if (
        not isinstance(value, list)
        or (not value and key != "clients")
        or any(type(item) is not int or not least <= item < 2**31 for item in value)
    ):
        raise InputError(f"{path}: {key} must be whole numbers of at least {least}, got {shown(value)}")
    return tuple(value)
