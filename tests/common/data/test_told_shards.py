"""What examples are told, and of which data that can be said."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.data.row_shards import RowShards
from perennial.common.data.source import open_folder, open_shards
from perennial.common.data.timestamps import phases_at
from perennial.common.data.told_shards import telling
from tests.conftest import make_data, write_folder


def test_every_example_is_told_its_block_in_training_and_in_the_test() -> None:
    plain, told = open_shards(RunConfig(blocks=3)), open_shards(RunConfig(blocks=3, told="block"))
    assert str(told.signature) == "x0 uint8 1x8x8, x1 float32 3, y in 10 classes"
    assert told.shape == plain.shape
    for block in range(3):
        for before, after in ((plain.shard(4, block), told.shard(4, block)), (plain.test(block), told.test(block))):
            assert before is not None
            assert after is not None
            assert after.x[0] is before.x[0]
            assert (after.rows == before.rows).all()
            assert (after.x[1][after.rows] == np.eye(3)[block]).all()
            assert len(after.x[1]) == len(after.x[0])


def test_a_devices_folder_tells_the_block_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "data", make_data(2, 3))
    for opened in (
        open_folder(folder, RunConfig(told="block")),
        open_shards(RunConfig(data=str(folder), told="block")),
    ):
        assert [kind.shape for kind in opened.signature.x] == [(2, 3), (2,)]
        assert opened.shard(2, 1).x[1].tolist() == [[0, 1]] * len(opened.shard(2, 1).x[0])


def test_the_time_is_told_row_by_row_also_of_shuffled_data() -> None:
    phase = np.array([0.0, 0.25, 0.5, 0.75])
    ids = {"client": np.zeros(4, int), "block": np.array([0, 0, 1, 1])}
    shards = RowShards.of((np.zeros((4, 1)),), np.arange(4), **ids, phase=phase, shuffled=True)
    told = telling(shards, "time", shuffled=True)
    expected = [[0, 1], [1, 0], [0, -1], [-1, 0]]
    assert told.shard(0, 0).x[1].tolist() == [pytest.approx(one, abs=1e-7) for one in expected]


@pytest.mark.parametrize(
    ("clock", "expected"), [("a: 00:00-12:00, b: 12:00-00:00", 0.75), ("a: Mon, b: Tue-Sun", 5.75)]
)
def test_a_phase_is_of_the_wall_clocks_day_or_of_its_week_if_days_differ(clock: str, expected: float) -> None:
    spec = ClockSpec.parse(clock, "America/Chicago")
    saturday = int(datetime(2026, 3, 28, 23, tzinfo=UTC).timestamp())  # 18:00 in Chicago
    assert phases_at(spec, np.array([saturday]))[0] == pytest.approx(expected / spec.period_days)


def test_data_without_times_and_blocks_that_are_shuffled_cannot_be_told() -> None:
    with pytest.raises(InputError, match="told: time needs data with a time for each example, as chicago"):
        open_shards(RunConfig(told="time"))
    with pytest.raises(InputError, match="told: block needs data that are not shuffled"):
        open_shards(RunConfig(told="block", shuffled=True))
