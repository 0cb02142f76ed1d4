"""Wall time to blocks: a week of named windows in a time zone. Pure; imports neither flwr nor torch.

Words used below: an *instant* is an aware datetime; minutes of the week and stretches are those of week.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.schedule import Slot
from perennial.common.cycle.steady import SteadyClock
from perennial.common.cycle.steady import utc_now as utc_now
from perennial.common.cycle.week import MINUTES_A_DAY, MINUTES_A_WEEK, stretches
from perennial.common.cycle.zones import check_zone

SECONDS_A_DAY = 24 * 60 * 60


@dataclass(frozen=True)
class ClockSpec:
    """Blocks by wall time: stretch k is minutes [starts[k], starts[k+1]) of the week and belongs to block owners[k]."""

    text: str
    zone: str
    names: tuple[str, ...]
    starts: tuple[int, ...]
    owners: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> ClockSpec:
        """Return the blocks that ``text`` names; an InputError unless every minute of the week is in exactly one."""
        if not isinstance(text, str):
            raise InputError(f"clock must be a text such as 'day: 08:00-20:00, night: 20:00-08:00', got {shown(text)}")
        check_zone(zone)
        return cls(text, zone, *stretches(text))

    @property
    def period_days(self) -> int:
        """Days after which the blocks repeat: 1 where all days are alike, else 7."""
        week = self.week()
        return 1 if week == week[MINUTES_A_DAY:] + week[:MINUTES_A_DAY] else 7

    def week(self) -> list[int]:
        """Return the block of every minute of the week."""
        ends = (*self.starts[1:], MINUTES_A_WEEK)
        stretches = zip(self.starts, ends, self.owners, strict=True)
        return [owner for start, end, owner in stretches for _ in range(start, end)]

    def block_at(self, instant: datetime) -> int:
        """Return the block that owns the wall time of the instant."""
        return self.owners[self._stretch(_seconds(instant))]

    def next_boundary(self, instant: datetime) -> datetime | None:
        """Return the first instant (UTC) after this one that is in another block; None where there is one block."""
        if len(self.names) == 1:
            return None
        second = _seconds(instant)
        block = self.owners[self._stretch(second)]
        while self.owners[self._stretch(second)] == block:
            end = (*self.starts, MINUTES_A_WEEK)[self._stretch(second) + 1] * 60
            arrival = second + end - self._second_of_week(second)
            # Where the wall clock is changed before, the end comes earlier or later, or is jumped over.
            change = self.offset_change(second, arrival)
            second = arrival if change is None else change
        return datetime.fromtimestamp(second, UTC)

    def offset(self, second: int) -> int:
        """Return local time minus UTC, in seconds, at a second since 1970."""
        offset = datetime.fromtimestamp(second, ZoneInfo(self.zone)).utcoffset()
        assert offset is not None
        return offset // timedelta(seconds=1)

    def offset_change(self, first: int, last: int) -> int | None:
        """Return the first second in (first, last] with another offset than ``first`` has; None: there is none."""
        before = self.offset(first)
        # Steps of a day miss nothing: since 1970 no zone has changed its clock twice within six days.
        for low in range(first, last, SECONDS_A_DAY):
            high = min(low + SECONDS_A_DAY, last)
            if self.offset(high) != before:
                after = range(low + 1, high + 1)
                return after[bisect_right(after, False, hi=len(after) - 1, key=lambda at: self.offset(at) != before)]
        return None

    def _second_of_week(self, second: int) -> int:
        # 1970-01-01 was a Thursday: three days after a Monday.
        return (second + self.offset(second) + 3 * SECONDS_A_DAY) % (7 * SECONDS_A_DAY)

    def _stretch(self, second: int) -> int:
        return bisect_right(self.starts, self._second_of_week(second) // 60) - 1


class ClockSchedule:
    """Rounds by wall time; fills ``Schedule``. A block has as many rounds as its time allows.

    text: the windows of the blocks, as in docs/clock.md. timezone: the zone of the windows' times.
    cycles: None if only ``num_rounds`` ends a run. A cycle is a day, or a week if days differ. Cycles are counted on
    the wall clock from ``started``, which is now if you do not give it; to resume, give that of the first part.
    clock: a function that returns the time; None: the machine's clock, without its jumps. A jump that lasts moves
    ``started`` as well, so that it ends no run before its days have passed.

    The slot of a round is fixed when the round begins: a round that goes on beyond the end of its block stays in it.

    >>> noon = datetime.fromisoformat("2026-03-28T11:00:00Z")
    >>> schedule = ClockSchedule(
    ...     "day: 08:00-20:00, night: 20:00-08:00", timezone="Europe/Berlin", clock=lambda: noon
    ... )
    >>> schedule.names[schedule.after(None).block]
    'day'
    """

    def __init__(
        self,
        text: str,
        timezone: str = "UTC",
        cycles: int | None = None,
        *,
        started: datetime | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if cycles is not None and cycles < 1:
            raise InputError(f"cycles must be at least 1, got {cycles}")
        self.spec, self.cycles, self.clock = ClockSpec.parse(text, timezone), cycles, clock or SteadyClock()
        # As if the clock had always been where it has jumped to meanwhile.
        self._started = (self.clock() if started is None else started) - self._jumped
        self._period = timedelta(days=self.spec.period_days)

    @property
    def started(self) -> datetime:
        """When the run began, by the clock as it is now."""
        return self._started + self._jumped

    @property
    def _jumped(self) -> timedelta:
        return self.clock.jumped if isinstance(self.clock, SteadyClock) else timedelta(0)

    def since(self, started: datetime) -> ClockSchedule:
        """Return this schedule for a run that goes on, which began at ``started``."""
        return ClockSchedule(self.spec.text, self.spec.zone, self.cycles, started=started, clock=self.clock)

    @property
    def names(self) -> tuple[str, ...]:
        return self.spec.names

    @property
    def total_rounds(self) -> None:
        return None

    @property
    def identity(self) -> dict[str, Any]:
        return {"clock": self.spec.text, "timezone": self.spec.zone}

    def after(self, slot: Slot | None) -> Slot | None:
        """Return the slot of a round that begins now; reads the clock once.

        ``round_in_block`` counts successive rounds in one block, also where a cycle ends between them.
        """
        now = self.clock()
        block = self.spec.block_at(now)
        # A clock that is set back must not repeat a cycle.
        cycle = max(self._cycle(now), 0 if slot is None else slot.cycle)
        if self.cycles is not None and cycle >= self.cycles:
            return None
        if slot is None:
            return Slot(1, cycle, block, 0)
        return Slot(slot.server_round + 1, cycle, block, slot.round_in_block + 1 if slot.block == block else 0)

    def _cycle(self, now: datetime) -> int:
        """Return how many whole periods have passed; a day of 23 or 25 hours is one day."""
        begin = datetime.fromtimestamp(_seconds(self.started), ZoneInfo(self.spec.zone))
        wall = now.astimezone(begin.tzinfo).replace(tzinfo=None)
        # Wall times that are skipped or come twice can make this wrong by one; the ends as instants decide.
        cycle = (wall - begin.replace(tzinfo=None)) // self._period + 1
        while cycle > 0 and (begin + cycle * self._period).astimezone(UTC) > now:
            cycle -= 1
        return max(cycle, 0)


@dataclass
class FakeClock:
    """A clock for simulations: the n-th call, from 0, returns ``start + n * step``."""

    start: datetime
    step: timedelta
    calls: int = 0

    def __call__(self) -> datetime:
        now = self.start + self.calls * self.step
        self.calls += 1
        return now


def _seconds(instant: datetime) -> int:
    """Return whole seconds since 1970, rounded down."""
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs a time zone, got {instant!r}")
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
