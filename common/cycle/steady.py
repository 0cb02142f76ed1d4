"""The machine's time, without its jumps: a clock that is set by days must not end a run, nor train the wrong block.

A *jump* is what the wall clock has gone, and the clock that nobody sets has not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

LOG = logging.getLogger("perennial")
# What servers of time correct in a healthy machine's clock is far below the first; who sets a clock for good, or leaves
# it wrong, waits the second.
TOLERATED, PATIENCE = timedelta(minutes=1), timedelta(minutes=10)
_UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))


def utc_now() -> datetime:
    return datetime.now(UTC)


def seconds_passed() -> float:
    """Return seconds that nobody can set; while the machine sleeps they go on, if its system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """A clock to call. After a jump, time goes on from before it until the wall clock is back, or has stayed away.

    jumped: what the wall clock has jumped for good, in all.
    """

    def __init__(self, wall: Callable[[], datetime] = utc_now, passed: Callable[[], float] = seconds_passed) -> None:
        self._wall, self._passed = wall, passed
        self._last = wall(), passed()
        self._doubted_since: float | None = None
        self.jumped = timedelta(0)

    def __call__(self) -> datetime:
        wall, passed = self._wall(), self._passed()
        expected = self._last[0] + timedelta(seconds=passed - self._last[1])
        jump = wall - expected
        if abs(jump) <= TOLERATED:
            if self._doubted_since is not None:
                LOG.warning("this machine's clock is right again")
            return self._believe(wall, passed)
        if self._doubted_since is None:
            self._doubted_since = passed
            LOG.warning(
                "this machine's clock jumped %s, to %s; the run goes on by the old time, unless the clock stays "
                "at the new one for %s", _said(jump), wall.isoformat(" ", "seconds"), _said(PATIENCE, sign=False),
            )  # fmt: skip
        if passed - self._doubted_since < PATIENCE.total_seconds():
            return expected
        LOG.warning("this machine's clock has stayed at the new time, and the run follows it")
        self.jumped += jump
        return self._believe(wall, passed)

    def _believe(self, wall: datetime, passed: float) -> datetime:
        self._last, self._doubted_since = (wall, passed), None
        return wall


def _said(span: timedelta, *, sign: bool = True) -> str:
    """Return a span as "2.0 hours ahead"."""
    seconds = abs(span).total_seconds()
    unit, size = next((each for each in _UNITS if seconds >= 2 * each[1]), _UNITS[-1])
    towards = " ahead" if span > timedelta(0) else " back"
    return f"{seconds / size:.{0 if unit == 'minutes' else 1}f} {unit}{towards if sign else ''}"
