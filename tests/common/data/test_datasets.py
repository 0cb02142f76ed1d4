"""Data sets by name: embedded, through torchvision, from one file."""

from __future__ import annotations

import hashlib
import pickle
import struct
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data import datasets
from perennial.common.data.source import NoData, open_shards, resolved
from tests.conftest import make_data, write_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERENNIAL_DATA", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def images(n: int, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def test_digits_are_the_known_1797_images() -> None:
    digits = datasets.load("digits")
    assert digits.x_train.shape == (1437, 1, 8, 8)
    assert digits.x_test.shape == (360, 1, 8, 8)
    assert digits.x_train.dtype == np.uint8
    assert digits.classes == 10
    counts = np.bincount(np.concatenate([digits.y_train, digits.y_test]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    levels = np.unique(np.concatenate([digits.x_train, digits.x_test]))
    assert (len(levels), levels[0], levels[-1]) == (17, 0, 255)


def test_digits_split_the_same_way_every_time() -> None:
    assert (datasets.load("digits").y_test == datasets.load("digits").y_test).all()
    assert set(datasets.load("digits").y_test.tolist()) == set(range(10))


def test_pixels_run_from_minus_one_to_one_and_float_data_stays_as_it_is() -> None:
    assert datasets.as_float(np.array([0, 255], np.uint8)).tolist() == [-1, 1]
    middle = datasets.as_float(np.array([100], np.uint8))
    assert middle.dtype == np.float32
    assert middle[0] == pytest.approx((100 / 255 - 0.5) / 0.5, abs=1e-7)
    x = np.array([3.5], np.float32)
    assert datasets.as_float(x) is x


def write_mnist(folder: Path, prefix: str, x: Any, y: Any) -> None:
    """Write the raw IDX files as they are published."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, *x.shape) + x.tobytes())
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, len(y)) + bytes(y))


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_torchvisions_mnist_becomes_one_file_that_is_used_from_then_on(cache: Path, name: str, folder: str) -> None:
    x, y = images(6, 28, 28), [0, 1, 2, 3, 9, 5]
    write_mnist(cache / folder / "raw", "train", x[:4], y[:4])
    write_mnist(cache / folder / "raw", "t10k", x[4:], y[4:])
    for _ in range(2):
        found = datasets.load(name)
        assert (found.x_train == x[:4, None]).all()
        assert (found.x_test == x[4:, None]).all()
        assert found.y_train.tolist() == y[:4]
        assert found.y_test.tolist() == y[4:]
        assert found.classes == 10
        # The second time there is nothing but the .npz.
        for path in sorted((cache / folder).rglob("*-ubyte")):
            path.unlink()
    assert [path.name for path in cache.glob("*.npz")] == [f"{name}.npz"]


@pytest.mark.parametrize(
    ("name", "kind", "labels"), [("cifar10", "CIFAR10", "labels"), ("cifar100", "CIFAR100", "fine_labels")]
)
def test_torchvisions_cifar_becomes_channels_first(
    cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, labels: str
) -> None:
    from torchvision import datasets as torchvision_datasets

    source = getattr(torchvision_datasets, kind)
    folder = cache / source.base_folder
    folder.mkdir()
    x = images(5, 3, 32, 32)

    def write(file: str, content: Any) -> list[str]:
        raw = pickle.dumps(content)
        (folder / file).write_bytes(raw)
        return [file, hashlib.md5(raw).hexdigest()]

    batches = {"train": write("a", {"data": x[:3].reshape(3, -1), labels: [0, 1, 2]})}
    batches["test"] = write("b", {"data": x[3:].reshape(2, -1), labels: [1, 2]})
    meta_key = source.meta["key"]
    file, digest = write("meta", {meta_key: ["a", "b", "c"]})
    monkeypatch.setattr(source, "train_list", [batches["train"]])
    monkeypatch.setattr(source, "test_list", [batches["test"]])
    monkeypatch.setattr(source, "meta", {"filename": file, "key": meta_key, "md5": digest})
    found = datasets.load(name)
    assert (found.x_train == x[:3]).all()
    assert (found.x_test == x[3:]).all()
    assert found.y_train.tolist() == [0, 1, 2]


def test_a_file_put_into_the_cache_by_hand_is_taken_as_it_is(cache: Path) -> None:
    x = images(4, 3, 32, 32)
    np.savez(
        cache / "cifar10.npz", x_train=x[:3], y_train=np.array([0, 1, 2], np.uint8), x_test=x[3:], y_test=np.array([2])
    )
    found = datasets.load("cifar10")
    assert isinstance(found.x_train, np.memmap)
    assert found.y_train.dtype == np.int64
    assert (found.x_train == x[:3]).all()


def test_without_torchvision_the_remedy_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(
        InputError, match=r"data mnist needs torchvision \(pip install 'perennial-fl\[datasets\]'\), or the file"
    ):
        datasets.load("mnist")


def test_a_download_that_fails_names_the_folder_and_the_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets as torchvision_datasets

    def offline(self: Any) -> None:
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torchvision_datasets.MNIST, "download", offline)
    with pytest.raises(
        InputError, match=r"mnist could not be downloaded.*no route to host.*put mnist\.npz there by hand"
    ):
        datasets.load("mnist")
    assert not list(cache.glob("*.npz"))


def test_torchvision_is_imported_only_where_it_is_used() -> None:
    code = (
        "import sys; from perennial.common.data import datasets\n"
        "datasets.load('digits'); print('torchvision' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERENNIAL_DATA", "/somewhere")
    assert datasets.cache_folder() == Path("/somewhere")
    monkeypatch.delenv("PERENNIAL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert datasets.cache_folder() == Path("/caches/perennial/data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": np.zeros((3, 2))}, r"\(train\): x must be uint8 or float32"),
        ({"y_test": np.zeros(5, int)}, r"\(test\): y must be integers of shape"),
        ({"y_train": np.array([0, -1, 1])}, "labels must be at least 0"),
        ({"x_test": np.full((2, 4), np.inf, np.float32)}, "not finite"),
    ],
)
def test_a_file_of_other_arrays_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    arrays: dict[str, Any] = {
        "x_train": images(3, 4),
        "y_train": np.arange(3),
        "x_test": images(2, 4),
        "y_test": np.arange(2),
    }
    np.savez(tmp_path / "mine.npz", **{**arrays, **change})
    with pytest.raises(InputError, match=rf"mine\.npz.*{message}"):
        datasets.load(str(tmp_path / "mine.npz"))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"data must be digits, cifar10, cifar100, mnist, fashion-mnist, .*got 'imagenet'"
    ):
        datasets.load("imagenet")


# --- From a configuration to its shards -------------------------------------------------------------------------------


def test_a_named_data_set_is_cut_as_configured() -> None:
    shards = open_shards(RunConfig(blocks=3, clients=7))
    assert (shards.blocks, shards.clients, shards.shape, shards.classes) == (3, tuple(range(7)), (1, 8, 8), 10)
    rows = [shards.shard(client, block).rows for client in range(7) for block in range(3)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(1437))


def test_a_label_shift_turns_the_labels_of_a_block_and_nothing_else() -> None:
    plain, turned = (open_shards(RunConfig(blocks=3, label_shift=shift)) for shift in (0, 4))
    for block in range(3):
        pairs = [(shards.shard(7, block), shards.test(block)) for shards in (plain, turned)]
        for before, after in zip(*pairs, strict=True):
            assert before is not None
            assert after is not None
            assert (after.rows == before.rows).all()
            assert after.x[0] is before.x[0]
            assert (after.y == (before.y + 4 * block) % 10).all()


def test_however_often_data_sets_are_opened_each_is_in_memory_once_and_only_while_it_is_held(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.npz" for name in "abcd"]
    for path in paths:
        np.savez_compressed(
            path, x_train=images(60, 2), y_train=np.arange(60) % 10, x_test=images(20, 2), y_test=np.arange(20) % 10
        )
    opened = [open_shards(RunConfig(data=str(path), clients=2, seed=seed)) for seed in (0, 1, 0) for path in paths]
    assert len({id(shards) for shards in opened}) == 8
    assert len({id(shards.shard(0, 0).x[0]) for shards in opened}) == 4
    pixels = weakref.ref(opened[0].shard(0, 0).x[0])
    del opened
    assert pixels() is None


def test_a_folders_manifest_decides_blocks_clients_and_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", make_data(2, 3))
    config = RunConfig(data=str(folder))
    found = resolved(config, open_shards(config))
    assert (found.blocks, found.clients, found.model) == (2, 3, "mlp")


def test_a_server_without_data_knows_shape_and_classes() -> None:
    shards = open_shards(RunConfig(shape="3x32x32", classes=100))
    assert isinstance(shards, NoData)
    assert (shards.shape, shards.classes, shards.test(0)) == ((3, 32, 32), 100, None)
    with pytest.raises(InputError, match="client 3 has no data here"):
        shards.shard(3, 0)


@pytest.mark.parametrize("shape", ["x", "3x", "0x3", "3,32", "-1", "3X32"])
def test_a_wrong_shape_is_refused(shape: str) -> None:
    with pytest.raises(InputError, match="shape must be sizes joined by x, as in 3x32x32"):
        open_shards(RunConfig(shape=shape))
