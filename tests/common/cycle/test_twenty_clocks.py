"""Twenty clocks against zoneinfo alone: zones of all kinds, changes of the clock, and days that never were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.common.cycle.clock import ClockSpec
from perennial.common.data.timestamps import blocks_at

# Each week as a text, and as what a reader of a wall clock would say: (weekday from 0, hour, minute) to a block.
WEEKS: dict[str, Callable[[int, int, int], str]] = {
    "day: 08:00-20:00, night: 20:00-08:00": lambda day, hour, minute: "day" if 8 <= hour < 20 else "night",
    "a: Mon-Fri 07:30-16:45, b: Mon-Fri 16:45-07:30, c: Sat,Sun": lambda day, hour, minute: (
        "c" if day >= 5 else "a" if (7, 30) <= (hour, minute) < (16, 45) else "b"
    ),
    "early: 00:00-02:30, late: 02:30-24:00": lambda day, hour, minute: "early" if (hour, minute) < (2, 30) else "late",
    "odd: Mon,Wed,Fri,Sun, even: Tue,Thu,Sat": lambda day, hour, minute: "odd" if day % 2 == 0 else "even",
}
# The change that each is here for: an hour, half an hour, two hours, at midnight, backwards in winter, none, a day.
ZONES = {
    "Europe/Berlin": "2026-03-29",
    "Europe/Dublin": "2026-10-25",
    "America/New_York": "2026-11-01",
    "America/St_Johns": "2011-11-06",
    "America/Sao_Paulo": "2018-11-04",
    "America/Caracas": "2016-05-01",
    "America/Havana": "2026-11-01",
    "Asia/Kolkata": "2026-01-01",
    "Asia/Kathmandu": "1986-01-01",
    "Asia/Tehran": "2022-03-22",
    "Asia/Pyongyang": "2018-05-05",
    "Asia/Gaza": "2026-03-28",
    "Africa/Casablanca": "2026-02-15",
    "Africa/Cairo": "2026-04-24",
    "Australia/Lord_Howe": "2026-10-04",
    "Australia/Eucla": "2009-03-29",
    "Pacific/Chatham": "2026-04-05",
    "Pacific/Apia": "2011-12-30",
    "Pacific/Kwajalein": "1993-08-21",
    "Antarctica/Troll": "2026-03-29",
}
CLOCKS = [(zone, list(WEEKS)[place % len(WEEKS)]) for place, zone in enumerate(ZONES)]


def read_off(zone: ZoneInfo, text: str, second: int) -> str:
    wall = datetime.fromtimestamp(second, zone)
    return WEEKS[text](wall.weekday(), wall.hour, wall.minute)


def compare(zone: str, text: str, seconds: range) -> None:
    spec, own = ClockSpec.parse(text, zone), ZoneInfo(zone)
    expected = [read_off(own, text, second) for second in seconds]
    found = blocks_at(spec, np.array(seconds, np.int64)).tolist()
    assert [spec.names[block] for block in found] == expected
    assert [spec.names[spec.block_at(datetime.fromtimestamp(one, UTC))] for one in seconds[::37]] == expected[::37]


def whole_year(zone: str) -> Iterator[range]:
    """The minutes of a year around the zone's change, day by day."""
    first = int(datetime.fromisoformat(f"{ZONES[zone]}T00:00Z").timestamp()) - 180 * 86400
    return (range(first + day * 86400, first + (day + 1) * 86400, 60) for day in range(366))


@pytest.mark.parametrize(("zone", "text"), CLOCKS, ids=[zone for zone, _ in CLOCKS])
@settings(max_examples=8)
@given(data=st.data())
def test_twenty_clocks_agree_with_zoneinfo(zone: str, text: str, data: st.DataObject) -> None:
    change = int(datetime.fromisoformat(f"{ZONES[zone]}T00:00Z").timestamp())
    near = st.integers(-36 * 3600, 24 * 3600).map(lambda offset: change + offset)
    any_time = st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1)).map(
        lambda naive: int(naive.replace(tzinfo=UTC).timestamp())
    )
    first = data.draw(near | any_time)
    # A step that is no minute, so that its seconds are all of a minute's.
    compare(zone, text, range(first, first + 12 * 3600, 61))


def test_the_changes_are_where_they_are_said_to_be() -> None:
    """Else twenty easy clocks would be compared: only Kolkata's has no change within two days of its date."""
    still = []
    for zone, date in ZONES.items():
        noon = datetime.fromisoformat(f"{date}T12:00Z")
        around = {(noon + timedelta(hours=hour)).astimezone(ZoneInfo(zone)).utcoffset() for hour in range(-48, 37, 6)}
        still += [zone] if len(around) == 1 else []
    assert still == ["Asia/Kolkata"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("zone", "text"), CLOCKS, ids=[zone for zone, _ in CLOCKS])
def test_twenty_clocks_agree_with_zoneinfo_in_every_minute_of_a_year(zone: str, text: str) -> None:
    for day in whole_year(zone):
        compare(zone, text, day)
