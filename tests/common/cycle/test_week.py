"""Texts of a week: what means the same, and what is refused. Which minute is whose is tested with the clock."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.cycle.week import stretches


def test_examples_that_mean_the_same_week_are_the_same() -> None:
    _, starts, owners = stretches("day: Mon-Fri 08:00-20:00, night: Mon-Fri 20:00-08:00, weekend: Sat,Sun")
    for text in (
        "day: 08:00-20:00, night: 20:00-08:00, weekend: Sat,Sun",
        "day:Mon-Fri 08:00-20:00,night:20:00-08:00,weekend:Sat-Sun",
        "day: Mon, Tue, Wed-Fri 08:00-12:00, 12:00-20:00, night: 00:00-08:00, 20:00-24:00, weekend: Sat,Sun",
    ):
        assert stretches(text)[1:] == (starts, owners)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day: 08:00-20:00", "no block covers Mon 00:00 to Mon 08:00"),
        ("weekend: Sat,Sun", "no block covers Mon 00:00 to Sat 00:00"),
        (
            "a: 08:00-20:00, b: 20:00-08:00, noon: Thu 11:59-12:01",
            "'a' and 'noon' both cover Thu 11:59 to Thu 12:01",
        ),
        ("a: Mon-Sat, b: Sat,Sun", "'a' and 'b' both cover Sat 00:00 to Sun 00:00"),
        ("a: Mon-Sun, b: 08:00-20:00", "block 'b' covers no time"),
        ("day: 08:00-20:00, day: 20:00-08:00", "'day' is named twice"),
        ("day: 08:00-08:00", "whole day is 00:00-24:00"),
        ("day: 24:00-08:00", "HH:MM-HH:MM within 00:00-24:00, got '24:00-08:00'"),
        ("day: 08:60-20:00", "got '08:60-20:00'"),
        ("day: 8:00-20:00", "got '8:00-20:00'"),
        ("day: Mo-Fr", "days must be one of Mon, Tue"),
        ("day: Mon-Wed-Fri", "got 'Mon-Wed-Fri'"),
        ("08:00-20:00", "cannot read '08:00-20:00'"),
        ("day:", "cannot read 'day:'"),
        ("", "cannot read ''"),
        ("day: Mon 08:00 20:00", "cannot read"),
    ],
)
def test_text_that_is_not_one_block_a_minute_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        stretches(text)


@settings(max_examples=300, deadline=None)
@given(st.text("abMonSatFri:,-0128 \n", max_size=40))
def test_any_text_is_a_clock_or_an_input_error(text: str) -> None:
    try:
        names, _, owners = stretches(text)
    except InputError:
        return
    assert set(owners) == set(range(len(names)))
