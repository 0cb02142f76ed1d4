"""The clock against a slow, obvious reading of the same week, minute by minute."""

from __future__ import annotations

import doctest
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSchedule, ClockSpec, FakeClock
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.common.cycle.week import DAYS

DOCUMENT = Path(__file__).parents[3] / "docs" / "clock.md"
MINUTE = timedelta(minutes=1)
WEEK = "day: Mon-Fri 08:00-20:00, night: Mon-Fri 20:00-08:00, weekend: Sat,Sun"
DAILY = "day: 08:00-20:00, night: 20:00-08:00"
# Where wall clocks jump: an hour, half an hour, a whole day, on other weekdays, or never.
CHANGES = {
    "Europe/Berlin": ("2026-03-29T01:00Z", "2026-10-25T01:00Z"),
    "America/New_York": ("2026-03-08T07:00Z", "2026-11-01T06:00Z"),
    "Australia/Lord_Howe": ("2026-04-04T15:00Z", "2026-10-03T15:30Z"),
    "Africa/Cairo": ("2026-04-23T22:00Z", "2026-10-29T21:00Z"),
    "Pacific/Apia": ("2011-12-30T10:00Z",),
    "Asia/Kathmandu": ("1985-12-31T18:30Z",),
    "UTC": ("2026-01-01T00:00Z",),
}


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@dataclass(frozen=True)
class Week:
    """A week by construction: whole days, and on the others windows that follow each other from the first cut on.

    cuts[d]: (minute, block) of the windows that start on day d; each lasts to the next, the last to the next shared
    day's first. All days have the same first cut, so nothing is left open or covered twice.
    """

    whole: dict[int, int]
    cuts: dict[int, list[tuple[int, int]]]
    zone: str

    @property
    def text(self) -> str:
        parts: dict[int, list[str]] = {}
        for day, cuts in self.cuts.items():
            for (start, block), (end, _) in itertools.pairwise([*cuts, cuts[0]]):
                parts.setdefault(block, []).append(f"{DAYS[day]} {clock_face(start)}-{clock_face(end)}")
        for day, block in self.whole.items():
            parts.setdefault(block, []).append(DAYS[day])
        return ", ".join(f"b{block}: {', '.join(parts[block])}" for block in sorted(parts))

    def block_at(self, instant: datetime) -> str:
        """Walk back over the wall clock, minute by minute, to the last cut."""
        local = instant.astimezone(ZoneInfo(self.zone))
        day, minute = local.weekday(), local.hour * 60 + local.minute
        if day in self.whole:
            return f"b{self.whole[day]}"
        while True:
            for start, block in self.cuts[day]:
                if start == minute:
                    return f"b{block}"
            minute -= 1
            while minute < 0 or day in self.whole:
                day, minute = (day - 1) % 7, 1439


def clock_face(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


@st.composite
def weeks(draw: st.DrawFn) -> Week:
    blocks = st.integers(0, 3)
    zone = draw(st.sampled_from(sorted(CHANGES)))
    whole = draw(st.dictionaries(st.integers(0, 6), blocks, max_size=3))
    first = draw(st.integers(0, 1438))
    minutes = st.lists(st.integers(first + 1, 1439), min_size=1, max_size=3).map(lambda later: sorted({first, *later}))
    # Two kinds of days, as weekdays and weekends are.
    kinds = [[(minute, draw(blocks)) for minute in draw(minutes)] for _ in range(2)]
    cuts = {day: kinds[draw(st.integers(0, 1))] for day in range(7) if day not in whole}
    return Week(whole, cuts, zone)


@st.composite
def weeks_and_instants(draw: st.DrawFn) -> tuple[Week, ClockSpec, datetime]:
    week = draw(weeks())
    change = utc(draw(st.sampled_from(CHANGES[week.zone])))
    near = st.integers(-240, 240).map(lambda minutes: change + minutes * MINUTE)
    within_days = st.integers(-10 * 1440, 10 * 1440).map(lambda minutes: change + minutes * MINUTE)
    any_time = st.datetimes(datetime(1980, 1, 1), datetime(2080, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC))
    return (week, ClockSpec.parse(week.text, week.zone), draw(near | within_days | any_time))


@settings(max_examples=300, deadline=None)
@given(weeks_and_instants())
def test_block_is_the_one_of_a_slow_reference(case: tuple[Week, ClockSpec, datetime]) -> None:
    week, spec, instant = case
    assert spec.names[spec.block_at(instant)] == week.block_at(instant)


@settings(max_examples=60, deadline=None)
@given(weeks_and_instants())
def test_next_boundary_is_the_first_minute_in_another_block(case: tuple[Week, ClockSpec, datetime]) -> None:
    _, spec, instant = case
    boundary = spec.next_boundary(instant)
    if len(spec.names) == 1:
        assert boundary is None
        return
    assert boundary is not None
    assert boundary > instant
    assert boundary.tzinfo is UTC
    block, minute = spec.block_at(instant), instant.replace(second=0, microsecond=0) + MINUTE
    while minute < boundary:
        assert spec.block_at(minute) == block
        minute += MINUTE
    assert spec.block_at(boundary) != block == spec.block_at(boundary - timedelta(microseconds=1))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("change", [0, 1])
def test_week_across_a_clock_change_has_the_right_block_every_minute(zone: str, change: int) -> None:
    start = utc(CHANGES[zone][change]) - timedelta(days=3, hours=5)
    clock = FakeClock(start, MINUTE)
    schedule = ClockSchedule(WEEK, zone, 1, started=start, clock=clock)
    rounds = 0
    slot = schedule.after(None)
    while slot is not None:
        local = (start + rounds * MINUTE).astimezone(ZoneInfo(zone))
        expected = "weekend" if local.weekday() >= 5 else "day" if 8 <= local.hour < 20 else "night"
        assert schedule.names[slot.block] == expected, local
        rounds += 1
        slot = schedule.after(slot)
    # A week of the wall clock: an hour less in spring, an hour more in autumn.
    assert rounds == 7 * 1440 + (-60, 60)[change]


def slots_of(schedule: Schedule) -> list[Slot]:
    slots: list[Slot] = []
    while (slot := schedule.after(slots[-1] if slots else None)) is not None:
        slots.append(slot)
    return slots


def visits(schedule: Schedule) -> list[tuple[str, int]]:
    """Return name and number of rounds of every visit of a block."""
    slots = slots_of(schedule)
    last = [slot for slot, later in itertools.pairwise(slots) if later.round_in_block == 0] + slots[-1:]
    return [(schedule.names[slot.block], slot.round_in_block + 1) for slot in last]


def hourly(text: str, start: str, cycles: int = 1, zone: str = "Europe/Berlin") -> ClockSchedule:
    return ClockSchedule(text, zone, cycles, started=utc(start), clock=FakeClock(utc(start), timedelta(hours=1)))


def test_weekend_of_the_change_has_47_hours_in_spring_and_49_in_autumn() -> None:
    spring = visits(hourly(WEEK, "2026-03-27T08:00+01:00"))
    assert spring[:4] == [("day", 12), ("night", 4), ("weekend", 47), ("night", 8)]
    autumn = visits(hourly(WEEK, "2026-10-23T08:00+02:00"))
    assert autumn[:4] == [("day", 12), ("night", 4), ("weekend", 49), ("night", 8)]


def test_cycle_is_a_day_of_the_wall_clock_counted_from_the_start() -> None:
    schedule = hourly(DAILY, "2026-03-28T15:00+01:00", cycles=2)
    assert visits(schedule) == [("day", 5), ("night", 11), ("day", 12), ("night", 12), ("day", 7)]
    cycles = [slot.cycle for slot in slots_of(hourly(DAILY, "2026-03-28T15:00+01:00", cycles=2))]
    assert cycles == [0] * 23 + [1] * 24


def test_cycle_is_a_week_where_days_differ() -> None:
    assert ClockSpec.parse(WEEK).period_days == 7
    assert ClockSpec.parse(DAILY).period_days == 1
    assert ClockSpec.parse("day: Mon-Sun 08:00-20:00, night: 20:00-08:00").period_days == 1
    assert len(slots_of(hourly(WEEK, "2026-06-03T09:00Z", cycles=2))) == 2 * 7 * 24


@pytest.mark.parametrize("start", ["2026-10-24T02:30+02:00", "2026-03-28T02:30+01:00", "2026-10-25T02:30+01:00"])
def test_cycles_never_go_back_where_the_wall_clock_does(start: str) -> None:
    schedule = ClockSchedule(DAILY, "Europe/Berlin", 3, started=utc(start), clock=FakeClock(utc(start), 10 * MINUTE))
    cycles = [slot.cycle for slot in slots_of(schedule)]
    assert cycles == sorted(cycles)
    assert set(cycles) == {0, 1, 2}


def test_any_slot_resumes_to_the_same_rest() -> None:
    start, step = utc("2026-03-27T08:00Z"), timedelta(hours=5)
    whole = slots_of(ClockSchedule(WEEK, "Europe/Berlin", 1, started=start, clock=FakeClock(start, step)))
    for done in range(1, len(whole), 7):
        anew = ClockSchedule(WEEK, "Europe/Berlin", 1, clock=FakeClock(start + (done - 1) * step, step))
        resumed = anew.since(start)
        assert resumed.after(whole[done - 1]) == whole[done]


def test_round_in_flight_at_a_boundary_keeps_its_block() -> None:
    begins = iter([utc("2026-06-01T19:59Z"), utc("2026-06-01T20:07Z")])
    schedule = ClockSchedule(DAILY, cycles=1, started=utc("2026-06-01T19:00Z"), clock=lambda: next(begins))
    first = schedule.after(None)
    assert first == Slot(1, 0, 0, 0)
    assert schedule.after(first) == Slot(2, 0, 1, 0)


def test_clock_set_back_repeats_no_cycle() -> None:
    schedule = ClockSchedule(DAILY, cycles=9, started=utc("2026-06-01T12:00Z"), clock=lambda: utc("2026-05-01T12:00Z"))
    assert schedule.after(Slot(40, 3, 0, 5)) == Slot(41, 3, 0, 6)


def test_start_is_now_unless_given() -> None:
    clock: Callable[[], datetime] = FakeClock(utc("2026-06-01T12:00Z"), MINUTE)
    assert ClockSchedule(DAILY, cycles=1, clock=clock).started == utc("2026-06-01T12:00Z")
    assert abs(ClockSchedule(DAILY, cycles=1).started - datetime.now(UTC)) < MINUTE


def test_window_past_midnight_belongs_to_the_day_it_starts_on() -> None:
    spec = ClockSpec.parse("party: Fri 22:00-04:00, rest: Sat 04:00-24:00, Sun-Thu 00:00-24:00, Fri 00:00-22:00")
    names = [
        spec.names[spec.block_at(utc(f"2026-06-0{day}"))] for day in ("5T03:00Z", "5T23:00Z", "6T03:59Z", "6T04:00Z")
    ]
    assert names == ["rest", "party", "party", "rest"]


@pytest.mark.parametrize("zone", ["Berlin", "", "Europe", "/etc/localtime", "../UTC", "Europe/Berlin\0"])
def test_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InputError, match="unknown time zone"):
        ClockSpec.parse(DAILY, zone)


def test_a_clock_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"clock must be a text such as 'day: .*', got \['day'\]"):
        ClockSchedule(["day"])  # type: ignore[arg-type]


def test_instant_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        ClockSpec.parse(DAILY).block_at(datetime(2026, 1, 1))


def test_without_cycles_the_clock_never_ends() -> None:
    start = utc("2026-06-01T12:00Z")
    schedule = ClockSchedule(DAILY, started=start, clock=lambda: start + timedelta(days=10_000))
    slot = schedule.after(None)
    assert slot is not None
    assert slot.cycle == 10_000


def test_identity_is_the_text_and_the_zone() -> None:
    assert ClockSchedule(DAILY, "Europe/Berlin", 3).identity == {"clock": DAILY, "timezone": "Europe/Berlin"}


def test_schedule_needs_a_cycle() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        ClockSchedule(DAILY, cycles=0)


def test_document_is_right() -> None:
    text = DOCUMENT.read_text()
    examples = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for example in map(yaml.safe_load, examples):
        ClockSpec.parse(example["clock"], example["timezone"])
    python = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(python, {}, DOCUMENT.name, str(DOCUMENT), 0)
    assert len(test.examples) > 10
    assert doctest.DocTestRunner().run(test).failed == 0
