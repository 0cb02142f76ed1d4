"""Who may come in by the public port, by a clock that the tests turn."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from perennial.server.link.door import Door, Guest, place


def knocks(door: Door[int], host: str, times: int, now: float = 0.0) -> list[Guest[int] | None]:
    return [door.knock(host, number, now) for number in range(times)]


def test_a_few_come_in_at_once() -> None:
    door = Door[int](1000)
    guests = knocks(door, "192.0.2.1", 5)
    inside, late = door.let_in(0)
    assert (inside, late) == (guests, [])
    assert not door.waits()


def test_there_are_never_more_connections_than_files() -> None:
    door = Door[int](100)
    known = 0
    for host in range(10):
        for guest in knocks(door, f"192.0.2.{host}", 50):
            if guest:
                door.let_in(0)
                door.meet(guest)
                known += 1
    assert known == door.count == 100


def test_one_address_has_a_bounded_share_of_the_room_for_strangers() -> None:
    door = Door[int](1000)
    assert knocks(door, "192.0.2.1", 400).count(None) == 400 - 250
    assert knocks(door, "192.0.2.2", 10).count(None) == 0


def test_strangers_leave_room_for_the_known() -> None:
    door = Door[int](1000)
    for host in range(100):
        knocks(door, f"192.0.2.{host}", 100)
    assert door.count == 500


def test_known_guests_of_one_address_are_not_counted_against_it() -> None:
    door, now = Door[int](10_000), 0.0
    for _ in range(5000):
        now += 0.01
        guest = door.knock("192.0.2.1", 0, now)
        assert guest is not None
        assert door.let_in(now) == ([guest], [])
        door.meet(guest)
    assert door.count == 5000


def test_a_thousand_that_come_at_once_are_all_in_within_seconds() -> None:
    door, now, met = Door[int](20_000), 0.0, 0
    assert None not in knocks(door, "192.0.2.1", 1000)
    while met < 1000:
        for guest in door.let_in(now)[0]:
            door.meet(guest)
            met += 1
        now += 0.01
    assert 3.5 < now < 5


def test_an_address_that_floods_does_not_keep_another_one_out() -> None:
    door = Door[int](20_000)
    knocks(door, "192.0.2.1", 5000)
    door.let_in(0)
    honest = door.knock("192.0.2.2", 0, 0.001)
    assert honest in door.let_in(0.01)[0]


def test_strangers_that_stay_keep_their_own_address_out_alone() -> None:
    door, now = Door[int](20_000), 0.0
    knocks(door, "192.0.2.1", 300)
    inside = 0
    while now < 10:
        inside += len(door.let_in(now)[0])
        now += 0.1
    assert inside == 256
    honest = door.knock("192.0.2.2", 0, now)
    assert door.let_in(now)[0] == [honest]


def test_who_waits_too_long_outside_is_sent_away() -> None:
    door = Door[int](20_000)
    knocks(door, "192.0.2.1", 1000)
    door.let_in(0)
    _, late = door.let_in(61)
    assert len(late) == 800
    assert door.count == 200


def test_who_hung_up_outside_is_passed_over() -> None:
    door = Door[int](20_000)
    gone, stays = door.knock("192.0.2.1", 1, 0), door.knock("192.0.2.1", 2, 0)
    assert gone is not None
    door.leave(gone)
    door.leave(gone)
    assert door.let_in(0) == ([stays], [])
    assert door.count == 1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", True),
    ],
)
def test_a_network_of_64_bits_is_one_address(one: str, other: str, same: bool) -> None:
    assert (place(one) == place(other)) == same


class Doors(RuleBasedStateMachine):
    """Whatever guests do, the counts are those of the guests."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.door = 0.0, Door[int](40)
        self.guests: list[Guest[int]] = []

    @rule(host=st.integers(1, 4), times=st.integers(1, 20))
    def knock(self, host: int, times: int) -> None:
        self.guests += [guest for guest in knocks(self.door, f"192.0.2.{host}", times, self.now) if guest]

    @rule(seconds=st.floats(0, 50))
    def let_in(self, seconds: float) -> None:
        self.now += seconds
        inside, late = self.door.let_in(self.now)
        assert all(guest.inside and not guest.gone for guest in inside)
        assert all(guest.gone and not guest.inside for guest in late)

    @rule(data=st.data())
    def meet(self, data: st.DataObject) -> None:
        if inside := [guest for guest in self.guests if guest.inside]:
            self.door.meet(data.draw(st.sampled_from(inside)))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.guests:
            self.door.leave(data.draw(st.sampled_from(self.guests)))

    @invariant()
    def counts_are_right(self) -> None:
        here = [guest for guest in self.guests if not guest.gone]
        strangers = [guest for guest in here if not guest.known]
        assert self.door.count == len(here) <= 40
        assert self.door._strangers.total == len(strangers) <= 20
        assert self.door._inside.total == len([guest for guest in strangers if guest.inside])


TestDoors = Doors.TestCase
TestDoors.settings = settings(deadline=None, max_examples=60)
