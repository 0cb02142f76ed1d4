"""Data of a user's own, named in the configuration."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.client.hosting import hosted
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data import shards as folders
from perennial.common.data.datasets import Shards
from perennial.common.data.row_shards import RowShards
from perennial.common.data.shards import ShardFolder
from perennial.common.data.source import open_shards, resolved


class Halves:
    """Three clients, two blocks; as a user would write it."""

    def open(self, config: RunConfig) -> Shards:
        x, y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 2
        return RowShards.of((x,), y, client=np.arange(12) % 3, block=np.arange(12) // 6, seed=config.seed)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Return a way to give a source a name that the configuration could hold."""

    def name(source: Any) -> str:
        module = types.ModuleType("someones_data")
        module.mine = source  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "someones_data", module)
        return "someones_data:mine"

    return name


@pytest.mark.parametrize("source", [Halves, Halves()])
def test_a_source_of_ones_own_is_opened_by_its_name(named: Callable[[Any], str], source: Any) -> None:
    config = RunConfig(data=named(source))
    shards = open_shards(config)
    assert (shards.blocks, shards.clients, str(shards.signature)) == (2, (0, 1, 2), "x float32 2, y in 2 classes")
    assert shards.shard(1, 1).rows.tolist() == [7, 10]
    found = resolved(config, shards)
    assert (found.blocks, found.clients, found.model) == (2, 3, "mlp")


def test_simulated_nodes_share_out_its_clients(named: Callable[[Any], str]) -> None:
    config = RunConfig(data=named(Halves))
    assert hosted({"partition-id": 1, "num-partitions": 2}, config).clients == (1,)


def test_it_can_be_written_as_a_folder_of_shards(named: Callable[[Any], str], tmp_path: Path) -> None:
    source = open_shards(RunConfig(data=named(Halves)))
    folders.write(tmp_path, source, source.clients)
    shard = ShardFolder(tmp_path).shard(1, 1)
    assert shard.x[0].tolist() == [[14, 15], [20, 21]]
    assert np.asarray(shard.y).tolist() == [1, 0]


class Broken:
    def __init__(self, shards: Any) -> None:
        self.shards = shards

    def open(self, config: RunConfig) -> Any:
        if isinstance(self.shards, Exception):
            raise self.shards
        return self.shards


class Lying(RowShards):
    def shard(self, client: int, block: int) -> Any:
        return {"x": self.x}


def lying() -> Any:
    whole = Halves().open(RunConfig())
    assert isinstance(whole, RowShards)
    return Lying(**vars(whole))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("text", r"must be a source, with a method open\(config\), got str"),
        (Broken, "could not be made without arguments: .*missing 1 required positional argument"),
        (Broken(None), "cannot be opened: AttributeError: 'NoneType' object has no attribute 'signature'"),
        (Broken(KeyError("rain")), "cannot be opened: KeyError: 'rain'"),
        (Broken(InputError("rides.csv: row 3 is wrong")), r"^rides\.csv: row 3 is wrong$"),
        (Broken(lying()), "must open as shards with a signature"),
    ],
)
def test_what_is_no_source_is_refused(named: Callable[[Any], str], source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_shards(RunConfig(data=named(source)))


def test_a_source_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"data 'no.such.module:mine' cannot be imported"):
        open_shards(RunConfig(data="no.such.module:mine"))
