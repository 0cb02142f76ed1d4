"""A machine's clock that jumps: said, waited out, followed if it stays; and no run ends by it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from perennial.common.cycle.clock import ClockSchedule
from perennial.common.cycle.steady import PATIENCE, SteadyClock, seconds_passed, utc_now

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
CLOCK = "day: 08:00-20:00, night: 20:00-08:00"


@dataclass
class Machine:
    """A machine whose wall clock is ``wrong`` by so much."""

    seconds: float = 0.0
    wrong: timedelta = timedelta(0)

    def wall(self) -> datetime:
        return START + timedelta(seconds=self.seconds) + self.wrong

    def passed(self) -> float:
        return 5e6 + self.seconds


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    return caplog


def steady(machine: Machine) -> SteadyClock:
    return SteadyClock(machine.wall, machine.passed)


@pytest.mark.parametrize("wrong", [timedelta(days=100), timedelta(hours=2), timedelta(hours=-2), timedelta(days=-9000)])
def test_a_jump_of_ten_seconds_is_said_and_waited_out(wrong: timedelta, said: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = steady(machine)
    for second in range(30):
        machine.seconds, machine.wrong = second, wrong if 10 <= second < 20 else timedelta(0)
        assert clock() == START + timedelta(seconds=second)
    first, last = said.messages
    assert first.startswith("this machine's clock jumped ")
    assert ("ahead" if wrong > timedelta(0) else "back") in first
    assert last == "this machine's clock is right again"
    assert clock.jumped == timedelta(0)


def test_a_jump_that_stays_is_followed_after_the_patience(said: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = steady(machine)
    machine.wrong = timedelta(hours=2)
    clock()
    machine.seconds = PATIENCE.total_seconds() - 1
    assert clock() == START + timedelta(seconds=machine.seconds)
    machine.seconds += 2
    assert clock() == machine.wall()
    assert clock.jumped == timedelta(hours=2)
    machine.seconds += 3600
    assert clock() == machine.wall()
    assert len(said.messages) == 2


def test_small_corrections_are_followed_at_once(said: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = steady(machine)
    for step in range(1, 100):
        machine.seconds, machine.wrong = 60.0 * step, timedelta(seconds=20 * step)
        assert clock() == machine.wall()
    assert said.messages == []


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("wrong", [timedelta(days=100), timedelta(days=-100)])
def test_a_clock_100_days_off_never_ends_a_run_nor_prolongs_it(stays: bool, wrong: timedelta) -> None:
    machine = Machine()
    schedule = ClockSchedule(CLOCK, cycles=2, clock=steady(machine))
    hours = 0
    slot = schedule.after(None)
    while slot is not None:
        hours += 1
        machine.seconds = 3600.0 * hours
        machine.wrong = wrong if hours > 3 and (stays or hours == 4) else timedelta(0)
        if not stays or hours <= 3:
            assert schedule.names[slot.block] == ("day" if 8 <= (8 + hours) % 24 < 20 else "night")
        slot = schedule.after(slot)
    assert hours == 48


def test_a_run_that_goes_on_after_a_jump_began_where_the_clock_is_now() -> None:
    machine = Machine()
    schedule = ClockSchedule(CLOCK, cycles=1, clock=steady(machine))
    machine.wrong = timedelta(days=100)
    schedule.after(None)
    machine.seconds = PATIENCE.total_seconds() + 1
    assert schedule.after(None) is not None
    assert schedule.started == START + timedelta(days=100)
    for resumed in (schedule.since(schedule.started), ClockSchedule(CLOCK, cycles=1, started=schedule.started,
                                                                    clock=steady(machine))):  # fmt: skip
        assert resumed.started == schedule.started
        assert resumed.after(None) is not None
        machine.seconds = 25 * 3600.0
        assert resumed.after(None) is None
        machine.seconds = PATIENCE.total_seconds() + 1


def test_the_real_clocks_agree() -> None:
    clock = SteadyClock()
    assert abs(clock() - utc_now()) < timedelta(minutes=1)
    assert seconds_passed() <= seconds_passed()
