"""Rounds to slots: which block of which cycle a round trains. Pure; imports neither flwr nor torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from perennial.common.command.errors import InputError, shown


@dataclass(frozen=True)
class Slot:
    """Place of a round in the schedule; ``server_round`` counts from 1, everything else from 0."""

    server_round: int
    cycle: int
    block: int
    round_in_block: int


class Schedule(Protocol):
    """Says in which block the next round falls; filled by counting rounds or by a clock."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks; their number is M."""

    @property
    def cycles(self) -> int | None:
        """Cycles after which the run is over; None: the schedule has no end."""

    @property
    def total_rounds(self) -> int | None:
        """Rounds of the whole run; None if a clock decides, or if there is no end."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this schedule and no other, in plain values; a run that goes on must have the same."""

    def after(self, slot: Slot | None) -> Slot | None:
        """Return the slot of a round that begins now, the last one having been ``slot`` (None: none yet).

        None: the run is over.
        """


@dataclass(frozen=True)
class RoundSchedule:
    """C cycles of M blocks of E rounds: the paper's t(c, m, k) in units of rounds.

    blocks: their names, or their number (then their names are 0, 1, …). cycles: None if only ``num_rounds`` ends a run.

    >>> schedule = RoundSchedule(blocks=["day", "night"], rounds_per_block=10)
    >>> slot = schedule.slot(31)
    >>> slot.cycle, schedule.names[slot.block], slot.round_in_block
    (1, 'night', 0)
    """

    blocks: int | Sequence[str]
    rounds_per_block: int
    cycles: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.blocks, int):
            _check_count("blocks", self.blocks)
        else:
            object.__setattr__(self, "blocks", _names(self.blocks))
        _check_count("rounds_per_block", self.rounds_per_block)
        if self.cycles is not None:
            _check_count("cycles", self.cycles)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.blocks))) if isinstance(self.blocks, int) else tuple(self.blocks)

    @property
    def total_rounds(self) -> int | None:
        return None if self.cycles is None else self.cycles * self._blocks * self.rounds_per_block

    @property
    def identity(self) -> dict[str, Any]:
        return {"blocks": list(self.names), "rounds_per_block": self.rounds_per_block}

    def slot(self, server_round: int) -> Slot:
        """Return the slot of a round, the inverse of the paper's t(c, m, k) (preliminaries)."""
        last = self.total_rounds
        if server_round < 1 or (last is not None and server_round > last):
            bounds = "at least 1" if last is None else f"in [1, {last}]"
            raise ValueError(f"server_round must be {bounds}, got {server_round}")
        visit, round_in_block = divmod(server_round - 1, self.rounds_per_block)
        cycle, block = divmod(visit, self._blocks)
        return Slot(server_round, cycle, block, round_in_block)

    def after(self, slot: Slot | None) -> Slot | None:
        done = 0 if slot is None else slot.server_round
        last = self.total_rounds
        return None if last is not None and done >= last else self.slot(done + 1)

    @property
    def _blocks(self) -> int:
        return self.blocks if isinstance(self.blocks, int) else len(self.blocks)


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise InputError(f"{name} must be at least 1, got {shown(value)}")


def _names(blocks: object) -> tuple[str, ...]:
    # A set has another order in each process, and its blocks would change places.
    if isinstance(blocks, str | Set) or not isinstance(blocks, Iterable):
        raise InputError(f"blocks must be a number or a list of names, got {shown(blocks)}")
    names = tuple(blocks)
    if not names:
        raise InputError("blocks is empty; a schedule needs at least one block")
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"the name of a block must be a text, got {shown(name)}")
        if names.count(name) > 1:
            raise InputError(f"blocks has {shown(name)} twice; give each block a name of its own")
    return names
