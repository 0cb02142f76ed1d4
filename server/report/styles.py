"""How each run of a report is drawn: the same style in every figure and table, chosen by what the runs differ in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perennial.server.report.columns import RunResult
from perennial.server.report.comparison import compare
from perennial.server.report.palette import DASHES, KNOWN, PALETTE, Style, graded, to_hex, to_rgb


def styles(runs: Sequence[RunResult]) -> dict[str, Style]:
    """A style for every run's name.

    Where one number differs: ordered shades. Where strategies differ and more: a colour a strategy, shades within it.
    Else a colour a run, the strategies' own where a run is named as one; when colours run out, again in dashes.
    """
    differing = compare(runs).differing
    names = [run.name for run in runs]
    if len(differing) == 1 and len(runs) > 2 and all(_is_number(value) for value in next(iter(differing.values()))):
        values = np.array(next(iter(differing.values())), dtype=np.float64)
        shades = graded(len(runs))
        return {name: shades[rank] for name, rank in zip(names, np.argsort(np.argsort(values)), strict=True)}
    if "strategy" in differing and len(differing) > 1:
        families: dict[str, list[str]] = {}
        for run in runs:
            families.setdefault(str(run.config.get("strategy")), []).append(run.name)
        bases = _distinct(list(families))
        return {
            name: style for key, members in families.items() for name, style in _shades(members, bases[key]).items()
        }
    return _distinct(names)


def _distinct(names: Sequence[str]) -> dict[str, Style]:
    known = {name: Style(KNOWN[name]) for name in names if name in KNOWN}
    taken = {style.color for style in known.values()}
    free = [Style(color, dash) for dash in DASHES for color in PALETTE if dash != "-" or color not in taken]
    others = [name for name in names if name not in known]
    return known | {name: free[place % len(free)] for place, name in enumerate(others)}


def _shades(names: Sequence[str], base: Style) -> dict[str, Style]:
    """From a lighter to a darker shade of `base`, in order."""
    if len(names) == 1:
        return {names[0]: base}
    color = to_rgb(base.color)
    mixes = np.linspace(-0.5, 0.45, len(names))
    mixed = [color * (1 - abs(mix)) + (abs(mix) if mix < 0 else 0.0) for mix in mixes]
    return {name: Style(to_hex(shade), base.dash) for name, shade in zip(names, mixed, strict=True)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
