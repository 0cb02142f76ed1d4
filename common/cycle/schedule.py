"""Rounds to slots: which block of which cycle a round trains. Pure; imports neither flwr nor torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
    def total_rounds(self) -> int | None:
        """Rounds of the whole run; None where a clock decides."""

    def after(self, slot: Slot | None) -> Slot | None:
        """Return the slot of a round that begins now, the last one having been ``slot`` (None: none yet).

        None: the run is over.
        """


@dataclass(frozen=True)
class RoundSchedule:
    """C cycles of M blocks of E rounds: the paper's t(c, m, k) in units of rounds."""

    blocks: int
    cycles: int
    rounds_per_block: int

    def __post_init__(self) -> None:
        for name in ("blocks", "cycles", "rounds_per_block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(block) for block in range(self.blocks))

    @property
    def total_rounds(self) -> int:
        return self.cycles * self.blocks * self.rounds_per_block

    def slot(self, server_round: int) -> Slot:
        """Return the slot of a round, the inverse of the paper's t(c, m, k) (preliminaries)."""
        if not 1 <= server_round <= self.total_rounds:
            raise ValueError(f"server_round must be in [1, {self.total_rounds}], got {server_round}")
        visit, round_in_block = divmod(server_round - 1, self.rounds_per_block)
        cycle, block = divmod(visit, self.blocks)
        return Slot(server_round, cycle, block, round_in_block)

    def after(self, slot: Slot | None) -> Slot | None:
        done = 0 if slot is None else slot.server_round
        return None if done >= self.total_rounds else self.slot(done + 1)
