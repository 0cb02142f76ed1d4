"""From a configuration to its data: the shards that clients train on and the test sets that predictors face."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.cycle.own_schedule import names_a_schedule
from perennial.common.cycle.steady import SteadyClock
from perennial.common.data import datasets, partition, sources
from perennial.common.data.datasets import CutDataset, Shard, Shards
from perennial.common.data.examples import Signature
from perennial.common.data.shards import ShardFolder
from perennial.common.data.timed import TimedFolder
from perennial.common.data.told_shards import telling

# What a server without data assumes where it is not told.
DEFAULT_CLASSES = 10

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True)
class NoData:
    """A server that holds no data: it knows what the models take, and evaluates nothing."""

    shape: tuple[int, ...]
    classes: int
    blocks: int
    clients: tuple[int, ...] = ()

    @property
    def signature(self) -> Signature:
        return Signature.labelled(self.shape, self.classes)

    def shard(self, client: int, block: int) -> Shard:
        raise InputError(f"client {client} has no data here")

    def test(self, block: int) -> Shard | None:
        return None


def open_shards(config: RunConfig) -> Shards:
    """Return the data that ``config`` names, whose examples have what the model is told as an input."""
    return telling(_plain(config), config.told, shuffled=config.shuffled)


def open_folder(path: Path, config: RunConfig) -> Shards:
    """Return a folder of shards, whose examples have what the model is told as an input."""
    return telling(_folder(path, config), config.told)


def _plain(config: RunConfig) -> Shards:
    """Return the data: a source's, a folder of shards, or cut from a data set."""
    if config.shape:
        return NoData(_shape(config.shape), config.classes or DEFAULT_CLASSES, config.blocks)
    if (source := sources.find(config.data)) is not None:
        return sources.opened(source, config)
    if Path(config.data).is_dir() or ("/" in config.data and not config.data.endswith(".npz")):
        return _folder(Path(config.data), config)
    return _cut(
        config.data,
        config.blocks,
        config.clients,
        config.labels_per_block,
        config.block_skew,
        config.label_shift,
        config.client_skew,
        config.shuffled,
        config.seed,
    )


def _folder(path: Path, config: RunConfig) -> Shards:
    """Return a folder of shards; where blocks follow a clock, its clients may hold samples with timestamps."""
    folder = ShardFolder(path)
    if not config.clock or names_a_schedule(config.clock):
        return folder
    spec = ClockSpec.parse(config.clock, config.timezone)
    return TimedFolder(folder, spec, config.retention_days, None if config.clock_start else SteadyClock())


def resolved(config: RunConfig, shards: Shards) -> RunConfig:
    """Return ``config`` with what the data decides: blocks, clients and the model."""
    # Here, because it loads torch, which cutting data into shards does without.
    from perennial.common.task.ready import model_for, open_task

    clients = len(shards.clients) or config.clients
    return config.with_data(shards.blocks, clients, model_for(open_task(config.task), config.model, shards.signature))


def _shared(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return ``make`` such that equal calls give one object, as long as somebody holds it.

    The passes of an experiment are all open at once: however many they are, each data set is in memory once.
    """
    held: WeakValueDictionary[tuple[object, ...], _T] = WeakValueDictionary()

    @wraps(make)
    def shared(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
        key = (*arguments, *keywords.items())
        found = held.get(key)
        if found is None:
            found = held[key] = make(*arguments, **keywords)
        return found

    return shared


@_shared
def _cut(
    name: str,
    blocks: int,
    clients: int,
    labels_per_block: int,
    block_skew: float,
    label_shift: int,
    client_skew: float,
    shuffled: bool,
    seed: int,
) -> CutDataset:
    dataset = _load(name)
    return CutDataset(
        dataset,
        partition.cut(
            dataset.y_train,
            classes=dataset.classes,
            blocks=blocks,
            clients=clients,
            labels_per_block=labels_per_block,
            block_skew=block_skew,
            client_skew=client_skew,
            shuffled=shuffled,
            seed=seed,
        ),
        label_shift,
    )


_load = _shared(datasets.load)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8})*", text):
        raise InputError(f"shape must be sizes joined by x, as in 3x32x32, got {text!r}")
    return tuple(int(size) for size in text.split("x"))
