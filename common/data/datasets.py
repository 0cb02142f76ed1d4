"""Data sets: embedded digits, torchvision's by name, one .npz file, or a folder of shards; all seen as shards."""

from __future__ import annotations

import base64
import json
import os
import zlib
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perennial.common.command import extras
from perennial.common.command.errors import InputError
from perennial.common.data import npz, partition
from perennial.common.data.examples import Inputs, Signature, Targets
from perennial.common.data.partition import Rows
from perennial.common.wire.seeding import generator

# What uint8 becomes: (x/255 - 0.5)/0.5, in float32, for every engine alike.
PIXELS: NDArray[np.float32] = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)


def as_float(x: NDArray[Any]) -> NDArray[np.float32]:
    """Return x as the models take it: float32 as it is, uint8 by PIXELS."""
    return PIXELS[x] if x.dtype == np.uint8 else np.asarray(x, np.float32)


@dataclass(frozen=True)
class Shard:
    """``rows`` of the inputs x and the targets y: D_m^i, or a block's test set."""

    x: Inputs
    y: Targets
    rows: Rows


class Shards(Protocol):
    """What the clients hold, block by block, and the blocks' test sets where there are any."""

    @property
    def signature(self) -> Signature: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def classes(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def clients(self) -> tuple[int, ...]: ...
    def shard(self, client: int, block: int) -> Shard: ...
    def test(self, block: int) -> Shard | None: ...


class Described:
    """Shards whose signature says all of their examples. shape: of the first input."""

    signature: Signature

    @property
    def shape(self) -> tuple[int, ...]:
        return self.signature.x[0].shape

    @property
    def classes(self) -> int:
        return self.signature.classes


@dataclass(frozen=True)
class Dataset:
    """A labelled data set: x uint8 or float32 (n, *shape), y int64 (n,) in [0, classes)."""

    x_train: NDArray[Any]
    y_train: NDArray[np.int64]
    x_test: NDArray[Any]
    y_test: NDArray[np.int64]

    @cached_property
    def classes(self) -> int:
        return int(max(self.y_train.max(), self.y_test.max(initial=0))) + 1


@dataclass(frozen=True)
class CutDataset(Described):
    """A data set cut by a partition: fills ``Shards`` without copying an image.

    label_shift: in block m, label y stands as y + m * label_shift, modulo the labels: blocks then disagree on answers.
    """

    dataset: Dataset
    partition: partition.Partition
    label_shift: int = 0

    @cached_property
    def signature(self) -> Signature:  # type: ignore[override]
        x = self.dataset.x_train
        return Signature.labelled(x.shape[1:], self.dataset.classes, (x.dtype.name,))

    @property
    def blocks(self) -> int:
        return len(self.partition.order)

    @cached_property
    def clients(self) -> tuple[int, ...]:
        return tuple(range(len(self.partition.bounds[0]) - 1))

    def shard(self, client: int, block: int) -> Shard:
        return Shard((self.dataset.x_train,), self._labels[block][0], self.partition.shard(client, block))

    def test(self, block: int) -> Shard | None:
        rows = partition.cut_test(self.dataset.y_test, self.partition.tested[block])
        return Shard((self.dataset.x_test,), self._labels[block][1], rows) if len(rows) else None

    @cached_property
    def _labels(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each block the labels of all training and of all test rows; one array where they are the same."""
        classes, both = self.dataset.classes, (self.dataset.y_train, self.dataset.y_test)
        turns = [block * self.label_shift % classes for block in range(self.blocks)]
        turned = {turn: ((both[0] + turn) % classes, (both[1] + turn) % classes) for turn in set(turns) - {0}}
        return [turned.get(turn, both) for turn in turns]


def load(name: str) -> Dataset:
    """Return a data set by name, or from a path to an .npz with x_train, y_train, x_test, y_test."""
    if name == "digits":
        return _digits()
    if name in TORCHVISION:
        path = cache_folder() / f"{name}.npz"
        if not path.exists():
            _download(name, path)
        return _from_npz(path)
    if name.endswith(".npz"):
        return _from_npz(Path(name))
    raise InputError(
        f"data must be digits, {', '.join(TORCHVISION)}, chicago, flights, a path to an .npz file, to a folder of "
        f"shards or to the .yaml file of a table, or package.module:name, got {name!r}"
    )


def cache_folder() -> Path:
    """Return where downloaded data sets are kept: $PERENNIAL_DATA, or perennial/data in the user's cache."""
    if chosen := os.environ.get("PERENNIAL_DATA"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "perennial" / "data"


def _from_npz(path: Path) -> Dataset:
    arrays = npz.read(path, ("x_train", "y_train", "x_test", "y_test"), mapped=True)
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        _check_labelled(x, y, f"{path} ({part})")
        arrays[f"y_{part}"] = y.astype(np.int64)
    return Dataset(**arrays)


def _check_labelled(x: NDArray[Any], y: NDArray[Any], where: str) -> None:
    """Refuse arrays that are not a labelled data set: x uint8 or float32 (n, *shape), y integers (n,) from 0."""
    if x.dtype not in (np.uint8, np.float32) or x.ndim < 2:
        raise InputError(f"{where}: x must be uint8 or float32 of shape (n, ...), got {x.dtype} {x.shape}")
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise InputError(f"{where}: y must be integers of shape ({len(x)},), got {y.dtype} {y.shape}")
    if len(y) and int(y.min()) < 0:
        raise InputError(f"{where}: labels must be at least 0, got {int(y.min())}")
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise InputError(f"{where}: x has values that are not finite")


def _digits() -> Dataset:
    record = json.loads(resources.files("perennial.common.data").joinpath("digits.json").read_text())
    levels = _unpack(record["x"]).reshape(-1, *record["shape"])
    x = np.round(levels * (255.0 / (record["levels"] - 1))).astype(np.uint8)
    y = _unpack(record["y"]).astype(np.int64)
    train, test = np.split(generator(0, "digits").permutation(len(y)), [len(y) * 4 // 5])
    return Dataset(x[train], y[train], x[test], y[test])


def _unpack(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8)


# Class names in torchvision.datasets.
TORCHVISION = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "mnist": "MNIST", "fashion-mnist": "FashionMNIST"}


def _download(name: str, path: Path) -> None:
    """Fetch a data set with torchvision and keep it as one uncompressed .npz, which workers map."""
    try:
        from torchvision import datasets
    except ImportError as error:
        raise InputError(
            f"data {name} needs torchvision ({extras.install('datasets')}), or the file {path} put there by hand"
        ) from error
    source = getattr(datasets, TORCHVISION[name])
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        try:
            found = source(str(path.parent), train=part == "train", download=True)
        except (RuntimeError, OSError) as error:
            raise InputError(
                f"data {name} could not be downloaded into {path.parent} ({error}); put {path.name} there by hand"
            ) from error
        pixels = np.asarray(found.data)
        # torchvision has greyscale as (n, h, w) and colour as (n, h, w, 3).
        arrays[f"x_{part}"] = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
        arrays[f"y_{part}"] = np.asarray(found.targets, np.int64)
    partial = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    partial.replace(path)
