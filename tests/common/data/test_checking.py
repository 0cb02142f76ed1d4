"""What a command finds out about its data before the first round."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data import checking
from perennial.common.data.checking import check_data
from perennial.common.data.datasets import Described, Shard
from perennial.common.data.examples import Signature
from perennial.common.data.source import open_shards
from tests.conftest import make_data, write_folder

CLOCK = {"clock": "day: 08:00-20:00, night: 20:00-08:00"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", make_data(2, 3))


def spoil(folder: Path, *, name: str = "client-00002/block-1.npz", **changes: Any) -> None:
    path = folder / name
    with np.load(path) as arrays:
        x, y = arrays["x"].copy(), arrays["y"].copy()
    for key, value in changes.items():
        {"x": x, "y": y}[key].flat[1] = value
    np.savez(path, x=x, y=y)


def refused(folder: Path, **keys: Any) -> str:
    with pytest.raises(InputError) as error:
        check_data([open_shards(RunConfig(data=str(folder), **keys))])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_sound_data_is_taken(folder: Path) -> None:
    check_data([open_shards(RunConfig(data=str(folder))), open_shards(RunConfig())])


def test_nan_in_a_shard_is_found(folder: Path) -> None:
    spoil(folder, x=np.nan)
    assert refused(folder) == f"{folder}/client-00002/block-1.npz: x has values that are not finite"


def test_a_label_out_of_range_is_found(folder: Path) -> None:
    spoil(folder, y=3)
    assert refused(folder).endswith("client-00002/block-1.npz: label 3 is outside [0, 3), the classes of the data")


def test_a_missing_client_folder_is_found(folder: Path) -> None:
    shutil.rmtree(folder / "client-00001")
    assert refused(folder) == f"{folder}/client-00001/block-0.npz does not exist"


def test_nan_in_a_test_set_is_found(folder: Path) -> None:
    spoil(folder, name="test/block-0.npz", x=np.inf)
    assert refused(folder).endswith("test/block-0.npz: x has values that are not finite")


def test_wrong_samples_with_timestamps_are_found(folder: Path) -> None:
    with np.load(folder / "client-00000" / "block-0.npz") as arrays:
        x, y = arrays["x"], arrays["y"]
    shutil.rmtree(folder / "client-00000")
    (folder / "client-00000").mkdir()
    samples = folder / "client-00000" / "timestamps.npz"
    np.savez(samples, x=x, y=y, t=np.arange(len(y)))
    check_data([open_shards(RunConfig(data=str(folder), **CLOCK))])
    assert refused(folder) == f"{samples} is cut into blocks by a clock; set clock, or write block-0.npz"
    np.savez(samples, x=x, y=y, t=np.arange(len(y)) * 10**12)
    assert "t must be seconds since 1970 in UTC" in refused(folder, **CLOCK)
    np.savez(samples, x=x * np.nan, y=y, t=np.arange(len(y)))
    assert "x has values that are not finite" in refused(folder, **CLOCK)


@dataclass
class Own(Described):
    """A user's own shards: three clients of one block, of which the last is wrong."""

    wrong: Any
    signature = Signature.labelled((2,), 3)
    blocks = 1
    clients = (0, 1, 2)

    def shard(self, client: int, block: int) -> Shard:
        x, y, rows = np.zeros((4, 2), np.float32), np.zeros(4, np.int64), np.arange(4)
        if client == 2:
            if isinstance(self.wrong, Exception):
                raise self.wrong
            {"x": x, "y": y, "rows": rows}[self.wrong[0]].flat[0] = self.wrong[1]
        return Shard((x,), y, rows)

    def test(self, block: int) -> Shard | None:
        return None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("x", np.nan), "x has values that are not finite"),
        (("y", 9), "label 9 is outside [0, 3)"),
        (("rows", 4), "rows must be whole numbers in [0, 4)"),
        (KeyError("gone"), "cannot be opened: KeyError: 'gone'"),
    ],
)
def test_what_is_wrong_with_a_source_of_one_s_own_is_found_in_its_last_client(wrong: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        check_data([Own(wrong)])
    assert str(error.value).startswith("data: client 2, block 0")
    assert message in str(error.value)


def test_a_folder_of_several_passes_is_read_once_and_a_long_check_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    monkeypatch.setattr(checking, "_SECONDS_BEFORE_NOTES", -1.0)
    caplog.set_level(logging.INFO, "perennial")
    check_data([open_shards(RunConfig(data=str(folder), seed=seed)) for seed in range(3)])
    assert caplog.messages == [f"checking the data: {done} of 6 shards" for done in range(1, 7)]
