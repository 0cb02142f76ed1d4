"""Wall time to blocks: a week of named windows in a time zone. Pure; imports neither flwr nor torch.

Words used below: an *instant* is an aware datetime; a *minute of the week* counts from Monday 00:00 on the wall clock,
in [0, 10080); a *stretch* is a run of such minutes that one block owns. docs/clock.md has the grammar.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

from common.errors import InputError, shown
from common.schedule import Slot

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTES_A_DAY = 24 * 60
MINUTES_A_WEEK = 7 * MINUTES_A_DAY
SECONDS_A_DAY = 24 * 60 * 60

_PIECE = re.compile(
    r"(?:(?P<name>[A-Za-z][A-Za-z0-9_-]*)\s*:)?\s*(?P<days>[A-Za-z][A-Za-z-]*)?\s*(?P<window>[0-9:-]+)?"
)
_WINDOW = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_EXAMPLE = "'day: Mon-Fri 08:00-20:00, night: Mon-Fri 20:00-08:00, weekend: Sat,Sun'"


def utc_now() -> datetime:
    return datetime.now(UTC)


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
        _check_zone(zone)
        return cls(text, zone, *_stretches(text))

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

    A slot is fixed when its round begins, so the round in flight at a boundary is finished in the block it began in.
    Cycle c is the c-th period (a day, or a week where days differ) after ``started`` on the wall clock, and the run is
    over after ``cycles`` of them. ``started`` is now unless given; to resume, give the one of the first part.
    """

    def __init__(
        self, spec: ClockSpec, cycles: int, *, started: datetime | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        if cycles < 1:
            raise InputError(f"cycles must be at least 1, got {cycles}")
        self.spec, self.cycles, self.clock = spec, cycles, clock
        self.started = clock() if started is None else started
        self._begin = datetime.fromtimestamp(_seconds(self.started), ZoneInfo(spec.zone))
        self._period = timedelta(days=spec.period_days)

    @property
    def names(self) -> tuple[str, ...]:
        return self.spec.names

    @property
    def blocks(self) -> int:
        return len(self.spec.names)

    @property
    def total_rounds(self) -> None:
        return None

    def after(self, slot: Slot | None) -> Slot | None:
        """Return the slot of a round that begins now; reads the clock once.

        ``round_in_block`` counts successive rounds in one block, also where a cycle ends between them.
        """
        now = self.clock()
        block = self.spec.block_at(now)
        # A clock that is set back must not repeat a cycle.
        cycle = max(self._cycle(now), 0 if slot is None else slot.cycle)
        if cycle >= self.cycles:
            return None
        if slot is None:
            return Slot(1, cycle, block, 0)
        return Slot(slot.server_round + 1, cycle, block, slot.round_in_block + 1 if slot.block == block else 0)

    def _cycle(self, now: datetime) -> int:
        """Return how many whole periods have passed; a day of 23 or 25 hours is one day."""
        wall = now.astimezone(self._begin.tzinfo).replace(tzinfo=None)
        # Wall times that are skipped or come twice can make this wrong by one; the ends as instants decide.
        cycle = (wall - self._begin.replace(tzinfo=None)) // self._period + 1
        while cycle > 0 and (self._begin + cycle * self._period).astimezone(UTC) > now:
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


@lru_cache(maxsize=64)
def _stretches(text: str) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Return names, starts and owners of a ClockSpec."""
    names, clauses = _clauses(text)
    spans = _spans(clauses)
    starts: list[int] = []
    owners: list[int] = []
    for start, end in pairwise(sorted({0, MINUTES_A_WEEK, *(edge for span in spans for edge in span[1:])})):
        claimants = {block for block, first, last in spans if first <= start < last}
        owner = _sole_owner(claimants, start, end, names)
        if not owners or owner != owners[-1]:
            starts.append(start)
            owners.append(owner)
    for block in sorted(set(range(len(names))) - set(owners)):
        raise InputError(f"clock: block {names[block]!r} covers no time; other blocks take all its days whole")
    return names, tuple(starts), tuple(owners)


@dataclass(frozen=True)
class _Clause:
    """Windows (minutes of the day) on days; without windows the whole days, without days every day not taken whole."""

    block: int
    days: tuple[int, ...] = ()
    windows: tuple[tuple[int, int], ...] = ()


def _clauses(text: str) -> tuple[tuple[str, ...], list[_Clause]]:
    """Return block names and clauses. A name opens a block; days after a window open the block's next clause."""
    names: list[str] = []
    clauses: list[_Clause] = []
    for piece in map(str.strip, text.split(",")):
        match = _PIECE.fullmatch(piece)
        if match is None or not (match["days"] or match["window"]) or not (match["name"] or names):
            raise InputError(f"clock: cannot read {shown(piece)}; write the blocks as in {_EXAMPLE}")
        if match["name"] in names:
            raise InputError(f"clock: block {match['name']!r} is named twice; write all its windows after one name")
        if match["name"]:
            names.append(match["name"])
        last = clauses[-1] if clauses and not match["name"] else None
        if last is None or (match["days"] and last.windows):
            clauses.append(_Clause(len(names) - 1))
            last = clauses[-1]
        days = last.days + (_days(match["days"]) if match["days"] else ())
        windows = last.windows + ((_window(match["window"]),) if match["window"] else ())
        clauses[-1] = _Clause(last.block, days, windows)
    return tuple(names), clauses


def _days(text: str) -> tuple[int, ...]:
    words = text.split("-")
    if len(words) > 2 or any(word not in DAYS for word in words):
        raise InputError(f"clock: days must be one of {', '.join(DAYS)} or a range such as Mon-Fri, got {shown(text)}")
    first, last = DAYS.index(words[0]), DAYS.index(words[-1])
    return tuple((first + day) % 7 for day in range((last - first) % 7 + 1))


def _window(text: str) -> tuple[int, int]:
    match = _WINDOW.fullmatch(text)
    hours = [int(number) for number in match.groups()] if match else [99] * 4
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if max(hours[1], hours[3]) > 59 or start >= MINUTES_A_DAY or end > MINUTES_A_DAY:
        raise InputError(f"clock: a window must be HH:MM-HH:MM within 00:00-24:00, got {shown(text)}")
    if start == end:
        raise InputError(f"clock: window {text!r} is empty; a whole day is 00:00-24:00")
    return start, end


def _spans(clauses: Sequence[_Clause]) -> list[tuple[int, int, int]]:
    """Return (block, start, end) in minutes of the week for all that the clauses claim."""
    whole = {day for clause in clauses if not clause.windows for day in clause.days}
    shared = [day for day in range(7) if day not in whole]
    spans = []
    for clause in clauses:
        for day in clause.days or shared:
            following = next((later % 7 for later in range(day + 1, day + 8) if later % 7 in shared), day)
            for start, end in clause.windows or ((0, MINUTES_A_DAY),):
                midnight = day * MINUTES_A_DAY
                spans.append((clause.block, midnight + start, midnight + (end if start < end else MINUTES_A_DAY)))
                if end < start:
                    # What is left of a window past midnight is on the next day that is not taken whole.
                    midnight = following * MINUTES_A_DAY
                    spans.append((clause.block, midnight, midnight + end))
    return spans


def _sole_owner(blocks: set[int], start: int, end: int, names: Sequence[str]) -> int:
    span = f"{_wall(start)} to {_wall(end)}"
    if not blocks:
        raise InputError(f"clock: no block covers {span}; widen a window or add a block for it")
    if len(blocks) > 1:
        both = " and ".join(repr(names[block]) for block in sorted(blocks))
        raise InputError(f"clock: {both} both cover {span}; narrow one of them")
    return min(blocks)


def _wall(minute: int) -> str:
    day, minute = divmod(minute % MINUTES_A_WEEK, MINUTES_A_DAY)
    return f"{DAYS[day]} {minute // 60:02d}:{minute % 60:02d}"


def _check_zone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        nearest = get_close_matches(name, available_timezones(), 1)
        remedy = f"did you mean {nearest[0]}?" if nearest else "give a name such as Europe/Berlin"
        raise InputError(f"unknown time zone {shown(name)}; {remedy}") from error


def _seconds(instant: datetime) -> int:
    """Return whole seconds since 1970, rounded down."""
    if instant.tzinfo is None:
        raise ValueError(f"an instant needs a time zone, got {instant!r}")
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
