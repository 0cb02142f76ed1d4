"""Names of time zones: taken, or refused with what to write instead."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from perennial.common.command.errors import InputError
from perennial.common.cycle.zones import check_zone


@pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "Etc/GMT-1", "Asia/Kathmandu", "GMT"])
def test_a_zone_that_is_the_same_everywhere_is_taken(name: str) -> None:
    check_zone(name)


@pytest.mark.parametrize(
    ("name", "zone", "hours"),
    [("GMT+1", "Etc/GMT-1", 1), ("UTC-05:00", "Etc/GMT+5", -5), ("+14", "Etc/GMT-14", 14), ("utc +0", "UTC", 0)],
)
def test_an_offset_is_answered_with_the_zone_that_has_it(name: str, zone: str, hours: int) -> None:
    with pytest.raises(InputError) as refused:
        check_zone(name)
    assert f"write {zone}" in str(refused.value)
    check_zone(zone)
    assert datetime(2026, 7, 1, tzinfo=ZoneInfo(zone)).utcoffset() == timedelta(hours=hours)


@pytest.mark.parametrize("name", ["GMT+5:30", "UTC+20", "-13"])
def test_an_offset_without_a_zone_of_its_own_is_answered_with_a_place(name: str) -> None:
    with pytest.raises(InputError, match="give the name of a place there"):
        check_zone(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("localtime", "means another zone on each machine"),
        ("posixrules", "means another zone on each machine"),
        ("Factory", "never given a zone"),
        ("right/Europe/Berlin", "leap seconds"),
    ],
)
def test_a_zone_that_is_another_one_elsewhere_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        check_zone(name)


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(InputError, match=r"unknown time zone 'europe/berlin'; did you mean Europe/Berlin\?"):
        check_zone("europe/berlin")
    with pytest.raises(InputError, match="give a name such as Europe/Berlin"):
        check_zone("!!")
