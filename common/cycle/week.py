"""The week that a text names: every minute of it belongs to one block. docs/clock.md has the grammar.

A *minute of the week* counts from Monday 00:00 on the wall clock, in [0, 10080); a *stretch* is a run of such minutes
that one block owns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from perennial.common.command.errors import InputError, shown

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTES_A_DAY = 24 * 60
MINUTES_A_WEEK = 7 * MINUTES_A_DAY

_PIECE = re.compile(
    r"(?:(?P<name>[A-Za-z][A-Za-z0-9_-]*)\s*:)?\s*(?P<days>[A-Za-z][A-Za-z-]*)?\s*(?P<window>[0-9:-]+)?"
)
_WINDOW = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_EXAMPLE = "'day: Mon-Fri 08:00-20:00, night: Mon-Fri 20:00-08:00, weekend: Sat,Sun'"


@lru_cache(maxsize=64)
def stretches(text: str) -> tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the blocks' names, and the first minute and the owner of each stretch."""
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
        raise InputError(f"clock: block {names[block]!r} covers no time; other blocks have all its days as a whole")
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
