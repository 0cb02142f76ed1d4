"""A folder whose clients hold samples with timestamps."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.data.shards import ShardFolder
from perennial.common.data.timed import TimedFolder

CLOCK = ClockSpec.parse("day: 08:00-20:00, night: 20:00-08:00", "UTC")
NOON = int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp())
HOUR = 3600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manifest = {"format": 1, "blocks": 2, "classes": 3, "shape": [2], "clients": [4, 7]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    # Client 4: noon, midnight and, two days before, noon. Client 7: ordinary block files.
    t = np.array([NOON, NOON - 12 * HOUR, NOON - 48 * HOUR])
    (tmp_path / "client-00004").mkdir()
    np.savez(tmp_path / "client-00004" / "timestamps.npz", x=np.zeros((3, 2), np.float32), y=np.arange(3), t=t)
    (tmp_path / "client-00007").mkdir()
    for block in range(2):
        np.savez(
            tmp_path / "client-00007" / f"block-{block}.npz",
            x=np.ones((block + 1, 2), np.float32),
            y=np.arange(block + 1),
        )
    return tmp_path


def timed(folder: Path, retention_days: float, hour: int = 0) -> TimedFolder:
    now = datetime.fromtimestamp(NOON + hour * HOUR, UTC)
    return TimedFolder(ShardFolder(folder), CLOCK, retention_days, lambda: now)


def test_samples_are_cut_by_the_clock(folder: Path) -> None:
    shards = timed(folder, 0)
    assert shards.shard(4, 0).rows.tolist() == [0, 2]
    assert shards.shard(4, 1).rows.tolist() == [1]


def test_old_samples_are_not_used(folder: Path) -> None:
    assert timed(folder, 1).shard(4, 0).rows.tolist() == [0]
    assert timed(folder, 1, hour=25).shard(4, 0).rows.tolist() == []


def test_samples_that_come_later_are_seen(folder: Path) -> None:
    shards = timed(folder, 0)
    assert len(shards.shard(4, 0).rows) == 2
    path = folder / "client-00004" / "timestamps.npz"
    np.savez(path, x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int64), t=np.full(4, NOON))
    assert shards.shard(4, 0).rows.tolist() == [0, 1, 2, 3]
    assert shards.shard(4, 1).rows.tolist() == []


def test_a_client_with_block_files_keeps_them(folder: Path) -> None:
    assert [len(timed(folder, 1).shard(7, block).rows) for block in range(2)] == [1, 2]


def test_on_a_simulated_clock_samples_age_from_the_latest_one(folder: Path) -> None:
    shards = TimedFolder(ShardFolder(folder), CLOCK, 1, None)
    assert shards.shard(4, 0).rows.tolist() == [0]


def test_a_clock_with_other_blocks_than_the_manifest_is_refused(folder: Path) -> None:
    three = ClockSpec.parse("day: 08:00-20:00, night: 20:00-08:00, weekend: Sat,Sun", "UTC")
    with pytest.raises(InputError, match="manifest says 2 blocks, the clock has 3"):
        TimedFolder(ShardFolder(folder), three, 0)


def test_a_device_checks_its_samples_at_the_start(folder: Path) -> None:
    ShardFolder(folder).check()
    np.savez(
        folder / "client-00004" / "timestamps.npz", x=np.zeros((1, 2), np.float32), y=np.array([3]), t=np.array([NOON])
    )
    with pytest.raises(InputError, match="label 3 is outside"):
        ShardFolder(folder).check()
