"""Folders of shards: what is written is read, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data import shards
from perennial.common.data.datasets import Described, Shard
from perennial.common.data.examples import Signature
from perennial.common.data.shards import ShardFolder
from perennial.common.data.source import open_shards
from tests.conftest import make_data, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", make_data(2, 3))


def change_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def replace_shard(folder: Path, x: Any, y: Any) -> None:
    np.savez(folder / "client-00001" / "block-0.npz", x=x, y=y)


def test_a_folder_written_by_hand_is_read(folder: Path) -> None:
    data, found = make_data(2, 3), ShardFolder(folder)
    assert (found.shape, found.classes, found.blocks, found.clients) == ((2, 3), 3, 2, (0, 1, 2))
    for client in range(3):
        for block in range(2):
            shard = found.shard(client, block)
            assert (shard.x[0][shard.rows] == data[block][client][0]).all()
            assert (shard.y[shard.rows] == data[block][client][1]).all()
    test = found.test(1)
    assert test is not None
    assert len(test.rows) == sum(len(y) for _, y in data[1])
    found.check()


def test_write_and_read_round_trip(tmp_path: Path) -> None:
    source = open_shards(RunConfig(clients=4))
    shards.write(tmp_path / "out", source, source.clients)
    found = ShardFolder(tmp_path / "out")
    assert (found.shape, found.classes, found.blocks, found.clients) == (source.shape, 10, 5, (0, 1, 2, 3))
    for block in range(5):
        for one, other in [(found.test(block), source.test(block)), (found.shard(2, block), source.shard(2, block))]:
            assert one is not None
            assert other is not None
            assert one.x[0].dtype == np.uint8
            assert (one.x[0][one.rows] == other.x[0][other.rows]).all()
            assert (one.y[one.rows] == other.y[other.rows]).all()


class TwoInputs(Described):
    """Two clients with numbers, categories and vectors as targets, or with nothing to predict."""

    blocks, clients = 2, (3, 5)

    def __init__(self, y: Any) -> None:
        self.x, self.y = (np.arange(12.0).reshape(4, 3), np.array([7, 8, 9, 7], np.uint16)), y
        self.signature = Signature.of(self.x, y, "here")

    def shard(self, client: int, block: int) -> Shard:
        return Shard(self.x, self.y, np.array([block, 2 + block]) if client == 3 else np.array([1]))

    def test(self, block: int) -> Shard | None:
        return Shard(self.x, self.y, np.array([3, 0])) if block else None


@pytest.mark.parametrize("y", [None, np.arange(8, dtype=np.float32).reshape(4, 2), np.array([True, False, True, True])])
def test_several_inputs_and_any_target_round_trip(tmp_path: Path, y: Any) -> None:
    source = TwoInputs(y)
    shards.write(tmp_path, source, source.clients)
    found = ShardFolder(tmp_path)
    found.check()
    assert found.signature == source.signature
    assert found.test(0) is None
    for one, other in [(found.shard(3, 1), source.shard(3, 1)), (found.test(1), source.test(1))]:
        assert one is not None
        assert other is not None
        for ours, theirs in zip(one.x, other.x, strict=True):
            assert ours.dtype == theirs.dtype
            assert (ours[one.rows] == theirs[other.rows]).all()
        assert (one.y is None) == (y is None)
        assert y is None or (np.asarray(one.y)[one.rows] == y[other.rows]).all()


def test_a_second_input_that_is_missing_is_named(tmp_path: Path) -> None:
    shards.write(tmp_path, TwoInputs(None), (3,))
    np.savez(tmp_path / "client-00003" / "block-0.npz", x0=np.zeros((1, 3)))
    with pytest.raises(InputError, match=r"block-0\.npz cannot be read as \.npz with arrays x0, x1: no array.*x1"):
        ShardFolder(tmp_path).check()


def test_a_client_without_examples_of_a_block_cannot_be_written(tmp_path: Path) -> None:
    source = TwoInputs(None)
    source.shard = lambda client, block: Shard(source.x, None, np.arange(2 - 2 * block))  # type: ignore[method-assign]
    with pytest.raises(InputError, match="client 5 has no examples of block 1"):
        shards.write(tmp_path / "out", source, (5,))
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_part_of_the_clients_without_test_sets_can_be_written(tmp_path: Path) -> None:
    source = open_shards(RunConfig(clients=4))
    shards.write(tmp_path / "out", source, (1, 3), with_test=False)
    found = ShardFolder(tmp_path / "out")
    assert found.clients == (1, 3)
    assert found.test(0) is None


def test_client_ids_need_not_begin_at_zero_nor_be_sorted(folder: Path) -> None:
    change_manifest(folder, clients=[2, 0])
    assert ShardFolder(folder).clients == (0, 2)


def test_a_servers_folder_may_have_test_sets_and_no_clients(folder: Path) -> None:
    change_manifest(folder, clients=[])
    found = ShardFolder(folder)
    assert found.clients == ()
    assert found.test(0) is not None


def test_unsigned_and_short_labels_are_taken(folder: Path) -> None:
    replace_shard(folder, np.zeros((2, 2, 3), np.float32), np.array([0, 2], np.uint8))
    assert ShardFolder(folder).shard(1, 0).y.dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "format must be 1 or 2, got 3"),
        ({"blocks": 0}, "blocks must be whole numbers of at least 1"),
        ({"blocks": "5"}, "blocks must be whole numbers"),
        ({"classes": None}, "classes must be whole numbers"),
        ({"shape": []}, "shape must be whole numbers"),
        ({"shape": [0]}, "shape must be whole numbers of at least 1"),
        ({"shape": 3}, "shape must be whole numbers"),
        ({"clients": 3}, "clients must be whole numbers"),
        ({"clients": [-1]}, "clients must be whole numbers of at least 0"),
        ({"clients": [True]}, "clients must be whole numbers"),
        ({"clients": [1, 1]}, "clients has an id twice"),
    ],
)
def test_a_wrong_manifest_is_refused_by_key(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_manifest(folder, **changes)
    with pytest.raises(InputError, match=rf"manifest\.json: {message}"):
        ShardFolder(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_no_json_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        ShardFolder(folder)


def test_a_folder_without_manifest_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"is not a folder of shards: manifest\.json is missing; `flower-simulation shards`"
    ):
        ShardFolder(tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 2, 3)), np.zeros(2, int), "x must be uint8 or float32"),
        (np.zeros(2, np.float32), np.zeros(2, int), "x must be uint8 or float32 of shape"),
        (
            np.zeros((2, 3, 2), np.float32),
            np.zeros(2, int),
            r"x must be uint8 or float32 of shape \(n, 2, 3\), here with n = 2, got float32 \(2, 3, 2\)",
        ),
        (
            np.zeros((2, 2, 3), np.float32),
            np.zeros(3, int),
            r"y must be int64 of shape \(n,\), here with n = 2",
        ),
        (np.zeros((2, 2, 3), np.float32), np.zeros(2), "y must be int64 of shape"),
        (np.zeros((2, 2, 3), np.float32), np.array([0, 3]), r"label 3 is outside \[0, 3\)"),
        (np.zeros((2, 2, 3), np.float32), np.array([0, -1]), r"label -1 is outside \[0, 3\)"),
        (np.zeros((0, 2, 3), np.float32), np.zeros(0, int), "has no examples"),
        (np.full((2, 2, 3), np.nan, np.float32), np.zeros(2, int), "x has values that are not finite"),
    ],
)
def test_a_wrong_shard_is_refused_by_name(folder: Path, x: Any, y: Any, message: str) -> None:
    replace_shard(folder, x, y)
    with pytest.raises(InputError, match=rf"client-00001/block-0\.npz.*{message}"):
        ShardFolder(folder).shard(1, 0)
    with pytest.raises(InputError, match="client-00001"):
        ShardFolder(folder).check()


def test_a_label_too_large_for_int64_is_refused(folder: Path) -> None:
    replace_shard(folder, np.zeros((1, 2, 3), np.float32), np.array([2**63], np.uint64))
    with pytest.raises(InputError, match="block-0"):
        ShardFolder(folder).shard(1, 0)


def test_a_missing_and_a_truncated_shard_are_named(folder: Path) -> None:
    path = folder / "client-00001" / "block-0.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"client-00001/block-0\.npz cannot be read"):
        ShardFolder(folder).shard(1, 0)
    path.unlink()
    with pytest.raises(InputError, match=r"client-00001/block-0\.npz does not exist"):
        ShardFolder(folder).shard(1, 0)


def test_shards_are_read_once(folder: Path) -> None:
    found = ShardFolder(folder)
    first = found.shard(0, 0)
    (folder / "client-00000" / "block-0.npz").unlink()
    assert found.shard(0, 0) is first


def test_the_cache_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_CACHED", 2)
    found = ShardFolder(folder)
    kept = found.shard(0, 0)
    found.shard(1, 0)
    assert found.shard(0, 0) is kept
    found.shard(2, 0)
    (folder / "client-00001" / "block-0.npz").unlink()
    assert found.shard(0, 0) is kept
    with pytest.raises(InputError, match="does not exist"):
        found.shard(1, 0)
