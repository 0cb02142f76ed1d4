"""Samples with timestamps, cut into blocks by the clock that the rounds follow. Imports neither flwr nor torch.

Arrays: x and y as ``examples`` has them; t int64 (n,), seconds since 1970 in UTC; rows int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import SECONDS_A_DAY, ClockSpec
from perennial.common.data import npz
from perennial.common.data.examples import Inputs, Signature, Targets
from perennial.common.data.partition import Rows

FILE = "timestamps.npz"
# 2100-01-01: all of our time in seconds is below it, all but its first weeks in milliseconds above.
_LATEST = 4_102_444_800

Times = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """What a device has recorded: row i was taken at second t[i]; rows come in any order."""

    x: Inputs
    y: Targets
    t: Times


def read_samples(path: Path, signature: Signature) -> Samples:
    """Return the samples of a file with the arrays of ``signature`` and t.

    t: integer seconds since 1970 in UTC, or datetime64.
    """
    arrays = npz.read(path, (*signature.names, "t"))
    x, y = signature.take(arrays, str(path))
    return Samples(x, y, seconds_of(arrays["t"], len(x[0]), str(path)))


def blocks_at(spec: ClockSpec, t: Times) -> NDArray[np.int64]:
    """Return ``spec.block_at`` of every second in t, for millions at once."""
    minutes = _seconds_of_week(spec, t) // 60
    week = np.array(spec.week(), np.int64)
    return week.take(minutes)


def phases_at(spec: ClockSpec, t: Times) -> NDArray[np.float64]:
    """Return how much of its cycle, a day or a week on the wall clock, is over at every second in t, in [0, 1)."""
    cycle = spec.period_days * SECONDS_A_DAY
    return _seconds_of_week(spec, t) % cycle / cycle


def _seconds_of_week(spec: ClockSpec, t: Times) -> Times:
    """Return the seconds since Monday began on the wall clock."""
    if not t.size:
        return np.zeros(t.shape, np.int64)
    since, offsets = _offsets(spec, int(t.min()), int(t.max()))
    local = t + offsets[np.searchsorted(since, t, side="right") - 1]
    # 1970-01-01 was a Thursday: three days after a Monday.
    return (local + 3 * SECONDS_A_DAY) % (7 * SECONDS_A_DAY)


def rows_by_block(spec: ClockSpec, t: Times, *, now: datetime, retention_days: float | None = None) -> tuple[Rows, ...]:
    """Return for every block its rows, ascending, of the last ``retention_days`` times 24 hours (None: of all time).

    Rows later than ``now`` are left out: on a faked clock they have not been recorded yet. A block may have no rows.
    """
    if now.tzinfo is None:
        raise ValueError(f"now needs a time zone, got {now!r}")
    if retention_days is not None and not (isfinite(retention_days) and retention_days > 0):
        raise InputError(f"retention in days must be above 0, got {retention_days}")
    used = t <= now.timestamp()
    if retention_days is not None:
        used &= t > now.timestamp() - retention_days * SECONDS_A_DAY
    rows = np.flatnonzero(used)
    blocks = blocks_at(spec, t[rows])
    return tuple(rows[blocks == block] for block in range(len(spec.names)))


def _offsets(spec: ClockSpec, first: int, last: int) -> tuple[Times, NDArray[np.int64]]:
    """Return since when which offset from UTC is in force, from ``first`` to ``last``."""
    since = [first]
    while (change := spec.offset_change(since[-1], last)) is not None:
        since.append(change)
    return np.array(since, np.int64), np.array([spec.offset(second) for second in since], np.int64)


def seconds_of(t: NDArray[Any], samples: int, where: str) -> Times:
    """Return times as seconds since 1970 in UTC, or refuse them; the first one that is wrong is named."""
    if t.dtype.kind not in "iuM" or t.shape != (samples,):
        raise InputError(
            f"{where}: t must be integer seconds or datetime64 of shape ({samples},), got {t.dtype} {t.shape}"
        )
    # datetime64 is rounded down to seconds; "not a time" becomes the least integer and is refused below.
    seconds = t.astype("datetime64[s]").astype(np.int64) if t.dtype.kind == "M" else t
    outside = (seconds < 0) | (seconds >= _LATEST)
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(f"{where}: t must be seconds since 1970 in UTC, in [0, {_LATEST}), got {t[row]} in row {row}")
    return seconds.astype(np.int64)
