"""Samples with timestamps: the vectorised cut against the clock itself, and files that are not what they should be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.data.examples import Signature
from perennial.common.data.timestamps import blocks_at, read_samples, rows_by_block

SPECS = tuple(
    ClockSpec.parse(text, zone)
    for text in ("day: 08:00-20:00, night: 20:00-08:00, weekend: Sat,Sun", "late: 02:15-02:45, else: 02:45-02:15")
    for zone in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "Pacific/Apia", "UTC")
)
EXAMPLES = Signature.labelled((2, 2), 3, ("uint8", "float32"))
NOW = datetime(2026, 3, 29, 12, tzinfo=UTC)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SPECS), st.lists(st.integers(0, 4_102_444_799), min_size=1, max_size=20))
def test_every_second_has_the_block_of_the_scalar_clock(spec: ClockSpec, seconds: list[int]) -> None:
    expected = [spec.block_at(datetime.fromtimestamp(second, UTC)) for second in seconds]
    assert blocks_at(spec, np.array(seconds)).tolist() == expected


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.names[0]}-{spec.zone}")
def test_clock_changes_of_a_year_are_cut_to_the_second(spec: ClockSpec) -> None:
    first, last = (datetime(year, 1, 1, tzinfo=UTC) for year in (2011, 2013))
    t = np.arange(int(first.timestamp()), int(last.timestamp()), 1799)
    expected = [spec.block_at(datetime.fromtimestamp(second, UTC)) for second in t.tolist()]
    assert blocks_at(spec, t).tolist() == expected
    boundary = spec.next_boundary(first)
    while boundary is not None and boundary < first + timedelta(days=100):
        before, after = blocks_at(spec, np.array([int(boundary.timestamp()) - 1, int(boundary.timestamp())]))
        assert before != after
        boundary = spec.next_boundary(boundary)


def test_rows_are_every_usable_sample_once_in_order() -> None:
    t = np.random.default_rng(0).integers(int(NOW.timestamp()) - 40 * 86_400, int(NOW.timestamp()) + 86_400, 5000)
    rows = rows_by_block(SPECS[0], t, now=NOW, retention_days=30)
    assert all((np.diff(block) > 0).all() for block in rows)
    usable = (t <= NOW.timestamp()) & (t > NOW.timestamp() - 30 * 86_400)
    assert np.sort(np.concatenate(rows)).tolist() == np.flatnonzero(usable).tolist()
    assert [set(blocks_at(SPECS[0], t[block]).tolist()) for block in rows] == [{0}, {1}, {2}]


def test_retention_ends_on_the_second_and_the_future_is_not_used() -> None:
    now = int(NOW.timestamp())
    t = np.array([now + 1, now, now - 86_399, now - 86_400, 0])
    everything = ClockSpec.parse("always: Mon-Sun")
    assert rows_by_block(everything, t, now=NOW, retention_days=1)[0].tolist() == [1, 2]
    assert rows_by_block(everything, t, now=NOW)[0].tolist() == [1, 2, 3, 4]


def test_block_without_samples_has_no_rows() -> None:
    assert [len(rows) for rows in rows_by_block(SPECS[0], np.zeros(0, np.int64), now=NOW)] == [0, 0, 0]


@pytest.mark.parametrize("days", [0, -1, float("nan"), float("inf")])
def test_retention_that_is_no_time_is_refused(days: float) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        rows_by_block(SPECS[0], np.zeros(1, np.int64), now=NOW, retention_days=days)


def save(folder: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {"x": np.zeros((3, 2, 2), np.float32), "y": np.arange(3), "t": np.arange(3)} | changes
    path = folder / "timestamps.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize("dtype", ["int64", "uint32", "datetime64[s]", "datetime64[ns]"])
def test_times_may_be_seconds_or_dates(tmp_path: Path, dtype: str) -> None:
    seconds = np.array([0, 86_400, 1_774_785_600])
    t = seconds.astype("datetime64[s]").astype(dtype) if dtype.startswith("d") else seconds.astype(dtype)
    samples = read_samples(save(tmp_path, t=t), EXAMPLES)
    assert samples.t.dtype == np.int64
    assert samples.t.tolist() == seconds.tolist()
    assert samples.y is not None
    assert samples.y.dtype == np.int64
    assert samples.x[0].shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t": None}, "no array"),
        ({"t": np.zeros(3)}, "integer seconds or datetime64"),
        ({"t": np.arange(2)}, r"of shape \(3,\)"),
        ({"t": np.array([0, 1, 1_774_785_600_000])}, "got 1774785600000 in row 2"),
        ({"t": np.array([0, -1, 0])}, "got -1 in row 1"),
        ({"t": np.array([0, 2**64 - 1, 0], np.uint64)}, "in row 1"),
        ({"t": np.array(["2026-01-01", "NaT", "2026-01-01"], "datetime64[s]")}, "got NaT in row 1"),
        ({"t": np.array([0, None, 0])}, "not data"),
        ({"x": np.zeros((3, 2, 2), np.float64)}, "uint8 or float32"),
        ({"x": np.full((3, 2, 2), np.nan, np.float32)}, "not finite"),
        ({"y": np.array([0, -1, 0])}, r"label -1 is outside \[0, 3\)"),
        ({"y": np.zeros(4, np.int64)}, r"of shape \(n,\), here with n = 3"),
    ],
)
def test_file_with_wrong_arrays_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_samples(save(tmp_path, **changes), EXAMPLES)


def test_file_that_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_samples(tmp_path / "timestamps.npz", EXAMPLES)
    path = save(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(path, EXAMPLES)
