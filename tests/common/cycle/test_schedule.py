"""Rounds to slots and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import RoundSchedule, Slot

schedules = st.builds(RoundSchedule, st.integers(1, 7), st.integers(1, 6), st.integers(1, 9))


def all_slots(schedule: RoundSchedule) -> list[Slot]:
    slots, slot = [], schedule.after(None)
    while slot is not None:
        slots.append(slot)
        slot = schedule.after(slot)
    return slots


def test_rounds_of_two_blocks_by_hand() -> None:
    slots = all_slots(RoundSchedule(blocks=2, cycles=2, rounds_per_block=2))
    places = [(slot.cycle, slot.block, slot.round_in_block) for slot in slots]
    assert places == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    assert [slot.server_round for slot in slots] == [1, 2, 3, 4, 5, 6, 7, 8]


@given(schedules)
def test_after_visits_every_round_once_in_order(schedule: RoundSchedule) -> None:
    slots = all_slots(schedule)
    assert schedule.total_rounds is not None
    assert [slot.server_round for slot in slots] == list(range(1, schedule.total_rounds + 1))
    assert slots == [schedule.slot(number) for number in range(1, schedule.total_rounds + 1)]


@given(schedules)
def test_a_round_is_the_papers_t_of_cycle_block_and_step(schedule: RoundSchedule) -> None:
    """The paper's t(c, m, k) = (c-1)MK + (m-1)K + k, all counted from 1, with a round for an iteration."""
    for slot in all_slots(schedule):
        c, m, k = slot.cycle + 1, slot.block + 1, slot.round_in_block + 1
        blocks, length = len(schedule.names), schedule.rounds_per_block
        assert slot.server_round == (c - 1) * blocks * length + (m - 1) * length + k


def test_names_are_the_blocks_numbers() -> None:
    assert RoundSchedule(3, 1, 1).names == ("0", "1", "2")


@pytest.mark.parametrize("server_round", [0, -1, 13])
def test_a_round_outside_the_run_is_refused_with_the_bound(server_round: int) -> None:
    with pytest.raises(ValueError, match=r"server_round must be in \[1, 12\], got"):
        RoundSchedule(2, rounds_per_block=2, cycles=3).slot(server_round)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_below_one_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        RoundSchedule(*sizes)


@given(schedules)
def test_without_cycles_the_rounds_are_the_same_and_never_end(schedule: RoundSchedule) -> None:
    endless = RoundSchedule(schedule.blocks, schedule.rounds_per_block)
    assert endless.total_rounds is None
    slots = all_slots(schedule)
    assert [endless.after(slot) for slot in [None, *slots[:-1]]] == slots
    beyond = endless.after(slots[-1])
    assert beyond is not None
    assert beyond.cycle == schedule.cycles


def test_blocks_may_be_named() -> None:
    schedule = RoundSchedule(["day", "night"], 1)
    assert schedule.names == ("day", "night")
    assert [schedule.slot(number).block for number in (1, 2, 3)] == [0, 1, 0]
    assert schedule == RoundSchedule(("day", "night"), 1)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "blocks is empty"),
        (["day", "night", "day"], "has 'day' twice"),
        (["day", ""], "the name of a block must be a text, got ''"),
        ([1, 2], "the name of a block must be a text, got 1"),
        ("day", "a number or a list of names, got 'day'"),
        (2.0, "a number or a list of names, got 2.0"),
        ({"day"}, r"a number or a list of names, got \{'day'\}"),
    ],
)
def test_blocks_without_names_of_their_own_are_refused(blocks: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RoundSchedule(blocks, 1)
