"""Where a run is: its slot, its pace, the time that is left, and its cycle as a dial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from perennial.common.cycle.clock import ClockSpec
from perennial.common.cycle.week import MINUTES_A_DAY, MINUTES_A_WEEK
from perennial.server.report.block_names import clock_of
from perennial.server.report.columns import RunResult
from perennial.server.report.web.dial import Arc, Dial

# Rounds that the pace is of.
_RECENT = 20
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def total_rounds(config: Mapping[str, object]) -> int | None:
    """Rounds of the whole run; None if a clock decides, or if there is no end."""
    parts = [config.get(key) for key in ("cycles", "blocks", "rounds-per-block")]
    if config.get("clock") or not all(isinstance(part, int) for part in parts):
        return None
    return math.prod(part for part in parts if isinstance(part, int))


def pace(run: RunResult) -> float:
    """Seconds a round, over the last rounds; NaN before the first one."""
    recent = run.rounds.seconds[-_RECENT:]
    return float(recent.mean()) if len(recent) else math.nan


def left(run: RunResult, now: datetime | None) -> str:
    """The time that is left: of the run if its rounds are counted, else of the block."""
    total, spec = total_rounds(run.config), clock_of(run.config)
    done = int(run.rounds.server_round[-1]) if len(run.rounds) else 0
    if done and (done == total or _ended_at(run) == done):
        return "none: it is done"
    if total is not None:
        rest = pace(run) * (total - done)
        return f"about {duration(rest)}" if math.isfinite(rest) else "-"
    instant = instant_of(run, now)
    if spec is None or instant is None:
        return "it has no end of its own"
    end = spec.next_boundary(instant)
    if end is None:
        return "its one block has no end"
    at = end.astimezone(ZoneInfo(spec.zone))
    return f"{duration((end - instant).total_seconds())} in this block, until {at:%H:%M}"


def _ended_at(run: RunResult) -> int | None:
    """The last round of a run that has ended; its final predictors say so."""
    slot = run.manifest.get("slot")
    number = slot.get("server-round") if isinstance(slot, Mapping) else None
    return number if isinstance(number, int) else None


def instant_of(run: RunResult, now: datetime | None) -> datetime | None:
    """What the run's clock says: simulated time of its last round, else `now`, else when its last line was written."""
    start, step = run.config.get("clock-start"), run.config.get("clock-step")
    if not (isinstance(start, str) and start):
        return now or run.touched
    if not isinstance(step, int | float):
        return None
    try:
        first = datetime.fromisoformat(start)
    except ValueError:
        return None
    rounds = int(run.rounds.server_round[-1]) if len(run.rounds) else 0
    # As FakeClock counts: it is looked at before each round, the first time at its start.
    passed = timedelta(minutes=max(rounds - 1, 0) * float(step))
    return (first if first.tzinfo else first.replace(tzinfo=UTC)) + passed


def dial_of(run: RunResult, now: datetime | None) -> Dial:
    """The run's cycle as a dial."""
    spec = clock_of(run.config)
    return _by_rounds(run) if spec is None else _by_clock(run, spec, instant_of(run, now))


def _by_rounds(run: RunResult) -> Dial:
    rounds, names = run.rounds, run.block_names
    arcs = [Arc(block, block / run.blocks, (block + 1) / run.blocks) for block in range(run.blocks)]
    if not len(rounds):
        return Dial(names, arcs, None, None, said="The cycle has not begun.")
    cycle, block, done = int(rounds.cycle[-1]), int(rounds.block[-1]), int(rounds.round_in_block[-1]) + 1
    per_block = run.config.get("rounds-per-block")
    share = min(done / per_block, 1.0) if isinstance(per_block, int) and per_block > 0 else 0.5
    of_block = f" of {per_block}" if isinstance(per_block, int) else ""
    said = f"Cycle {cycle + 1}, {block_said(names[block])}, round {done}{of_block} of the block."
    return Dial(names, arcs, (block + share) / run.blocks, block, said=said)


def block_said(name: str) -> str:
    """`day` -> `block day`; a block without a name of its own is called `block 0` already."""
    return name if name.startswith("block ") else f"block {name}"


def _by_clock(run: RunResult, spec: ClockSpec, instant: datetime | None) -> Dial:
    period = MINUTES_A_DAY if spec.period_days == 1 else MINUTES_A_WEEK
    arcs = _arcs(spec.week()[:period])
    marks = (
        [(hour / 24, str(hour)) for hour in (0, 6, 12, 18)]
        if spec.period_days == 1
        else [((day + 0.5) / 7, name) for day, name in enumerate(_DAYS)]
    )
    if instant is None:
        return Dial(run.block_names, arcs, None, None, marks, "The time of the run is not known.")
    wall = instant.astimezone(ZoneInfo(spec.zone))
    minute = wall.hour * 60 + wall.minute + (0 if spec.period_days == 1 else wall.weekday() * MINUTES_A_DAY)
    block = spec.block_at(instant)
    said = f"{wall:%A %H:%M} in {spec.zone}: {block_said(spec.names[block])}."
    if len(run.rounds):
        said += f" The last round was in {block_said(run.block_names[int(run.rounds.block[-1])])}."
    return Dial(run.block_names, arcs, minute / period, block, marks, said)


def _arcs(week: Sequence[int]) -> list[Arc]:
    arcs, at = [], 0
    for block, minutes in groupby(week):
        length = len(list(minutes))
        arcs.append(Arc(block, at / len(week), (at + length) / len(week)))
        at += length
    if len(arcs) > 1 and arcs[0].block == arcs[-1].block:
        # A night that goes over midnight is one arc.
        arcs[-1] = Arc(arcs[-1].block, arcs[-1].first, 1.0 + arcs.pop(0).last)
    return arcs


def duration(seconds: float) -> str:
    """A time as one reads it: `40 s`, `12 min`, `3 h 05 min`, `2 d 4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"
