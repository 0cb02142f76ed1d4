"""The summary of some runs, one row each: as columns of text, and as a plain table for the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TextIO

import numpy as np

from perennial.server.report.columns import RunResult
from perennial.server.report.quantities import NAN, Spread, best, final, last_cycle, reach
from perennial.server.report.scale import MISSING, Scale, shared

_GAP = "  "
_LEAST_WIDTH = 40
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


@dataclass(frozen=True)
class Column:
    """A heading, a cell for each run, which rows hold the best value (none if better has no meaning), and what it tells
    of: the run `overall`, its `cost`, or one of its `blocks`."""

    heading: str
    cells: tuple[str, ...]
    best: frozenset[int] = frozenset()
    about: str = "overall"


def unit_of(most: float) -> tuple[float, str]:
    """The decimal unit in which `most` bytes read well, as (bytes in a unit, its name)."""
    return next(((size, name) for size, name in _UNITS if most >= size), (1.0, "B"))


def amount(value: float) -> str:
    """A number that fits a column: one decimal below 1000, none and thousands marked from there on."""
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def shared_block_names(runs: Sequence[RunResult]) -> tuple[str, ...]:
    """One name for every block of the run with most blocks: the runs' own where all agree, else `block m`."""
    columns = [set(names) - {None} for names in zip_longest(*(run.block_names for run in runs))]
    return tuple(str(*names) if len(names) == 1 else f"block {block}" for block, names in enumerate(columns))


def summary(runs: Sequence[RunResult]) -> list[Column]:
    """The summary's columns, the runs' names first. Accuracies are in %, `final` and those of blocks the last ones.

    Runs of a task with another score have that score there, which then has no unit.
    """
    scales = [run.scale for run in runs]
    unit = shared(scales).unit
    cycles = [last_cycle(run.evaluated) for run in runs]
    bests = [best(run.evaluated) for run in runs]
    first = [reach(run.evaluated, value) for run, value in zip(runs, bests, strict=True)]
    return [
        Column("run", tuple(run.name for run in runs)),
        _scores(f"final{unit}", [final(run.evaluated) for run in runs], scales),
        _scores(f"best{unit}", bests, scales),
        Column("at round", tuple(str(cost.server_round) if cost else MISSING for cost in first)),
        _scores(f"last cycle{unit}", [cycle.mean for cycle in cycles], scales),
        Column("min..max", tuple(map(_range, cycles, scales))),
        *(
            replace(_scores(name, [_final_on(run, block) for run in runs], scales), about="blocks")
            for block, name in enumerate(shared_block_names(runs))
        ),
        Column("rounds", tuple(str(len(run.rounds)) for run in runs), about="cost"),
        _bytes("up", [int(run.rounds.bytes_up.sum()) for run in runs]),
        _bytes("down", [int(run.rounds.bytes_down.sum()) for run in runs]),
        Column("seconds", tuple(amount(float(run.rounds.seconds.sum())) for run in runs), about="cost"),
    ]


def render(runs: Sequence[RunResult], width: int, bold: bool = False) -> str:
    """The summary as text of at most `width` columns (40 at least), ending in a newline.

    Columns that do not fit beside the others go into further tables below, each beginning with the names.
    """
    width = max(width, _LEAST_WIDTH)
    names, *rest = (replace(column, heading=_shorten(column.heading, width // 3)) for column in summary(runs))
    names = replace(names, cells=tuple(_shorten(name, width // 2) for name in names.cells))
    if _width([names, *rest]) <= width:
        return _draw([names, *rest], bold)
    tables: list[list[Column]] = [[names]]
    for about in ("overall", "cost", "blocks"):
        group = [column for column in rest if column.about == about]
        if len(tables[-1]) > 1 and _width([*tables[-1], *group]) > width:
            tables.append([names])
        for column in group:
            if _width([*tables[-1], column]) > width:
                tables.append([names])
            tables[-1].append(column)
    return "\n".join(_draw(table, bold) for table in tables)


def show(runs: Sequence[RunResult], stream: TextIO | None = None) -> None:
    """Print the summary, as wide as the terminal, with bold headings and best values if it is one."""
    out = sys.stdout if stream is None else stream
    terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    text = render(runs, shutil.get_terminal_size((120, 24)).columns, bold=terminal)
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, errors="replace").decode(encoding))


def _scores(heading: str, values: Sequence[float], scales: Sequence[Scale]) -> Column:
    cells = tuple(scale.text(value) for scale, value in zip(scales, values, strict=True))
    shown = {row: float(cell) for row, cell in enumerate(cells) if cell != MISSING}
    # Compared as shown: two runs that read the same are both best, and where all are, none is.
    top = shared(scales).best_of(shown.values()) if shown and shared(scales).better else NAN
    best = frozenset(row for row, value in shown.items() if value == top)
    return Column(heading, cells, best if len(best) < len(cells) else frozenset())


def _bytes(direction: str, totals: Sequence[int]) -> Column:
    size, unit = unit_of(max(totals, default=0))
    return Column(f"{unit} {direction}", tuple(amount(total / size) for total in totals), about="cost")


def _range(cycle: Spread, scale: Scale) -> str:
    return f"{scale.text(cycle.least)}..{scale.text(cycle.most)}" if np.isfinite(cycle.mean) else MISSING


def _final_on(run: RunResult, block: int) -> float:
    measured = len(run.evaluated) and block < run.blocks
    return float(run.evaluated.accuracy[-1, block]) if measured else NAN


def _shorten(text: str, most: int) -> str:
    """Cut the middle out of a text longer than `most`: names by what differs tell runs apart at both ends."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    if len(text) <= most:
        return text
    tail = (most - 2) // 2
    return f"{text[: most - 2 - tail]}..{text[len(text) - tail :]}"


def _widths(columns: Sequence[Column]) -> list[int]:
    return [max(len(text) for text in (column.heading, *column.cells)) for column in columns]


def _width(columns: Sequence[Column]) -> int:
    return sum(_widths(columns)) + len(_GAP) * (len(columns) - 1)


def _draw(columns: Sequence[Column], bold: bool) -> str:
    def cell(text: str, place: int, strong: bool) -> str:
        padded = text.rjust(widths[place]) if place else text.ljust(widths[place])
        return f"\x1b[1m{padded}\x1b[0m" if bold and strong else padded

    widths = _widths(columns)
    lines = [[cell(column.heading, place, True) for place, column in enumerate(columns)], ["-" * w for w in widths]]
    lines += [
        [cell(column.cells[row], place, row in column.best) for place, column in enumerate(columns)]
        for row in range(len(columns[0].cells))
    ]
    return "".join(_GAP.join(line).rstrip() + "\n" for line in lines)
