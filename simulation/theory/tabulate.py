"""What was measured as tables: CSV files, and the slopes as Markdown."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from perennial.simulation.theory.problem import Floats
from perennial.simulation.theory.slopes import Slope, fit, mean_interval
from perennial.simulation.theory.study import QUANTITIES, Bench, Setting, Variable

Row = dict[str, str | int]
VARIABLES: tuple[Variable, ...] = ("T", "N", "M")


def problem_row(bench: Bench, blocks: Iterable[int], clients: int) -> Row:
    """Return a regime's constants; sigma^2 is of as many clients as given, the gains of as many blocks."""
    gains: Row = {f"gain_M{count}": f"{bench.gain(count).mean():.3e}" for count in blocks}
    return {
        "regime": bench.regime.name,
        "mu": f"{bench.regime.convexity:g}",
        "L": f"{bench.smoothness:.4f}",
        "sigma2": f"{bench.problem.variance(clients):.3f}",
        "distance2": f"{bench.distance:.3f}",
        **gains,
    }


def excess_rows(settings: Iterable[Setting]) -> list[Row]:
    """Return a row for each setting and quantity: its plan, and the mean over seeds with its 95 % interval."""
    rows: list[Row] = []
    for setting in settings:
        for quantity in QUANTITIES:
            made = setting.plan_of(quantity.key)
            mean, low, high = mean_interval(setting.excess[quantity.key])
            rows.append(
                {
                    "regime": setting.regime,
                    "sweep": setting.variable,
                    "quantity": quantity.key,
                    "T": made.iterations,
                    "N": made.clients,
                    "M": made.blocks,
                    "C": made.cycles,
                    "E": made.rounds_per_block,
                    "I": made.local_iterations,
                    "gamma": f"{made.gamma:.6g}",
                    "eta": f"{made.eta:.6g}",
                    "mean": f"{mean:.6e}",
                    "low": f"{low:.6e}",
                    "high": f"{high:.6e}",
                    "leading_terms": f"{setting.leading:.6e}" if made is setting.theorem_1 else "",
                    "separate_share": f"{setting.separate_share:.4f}" if made is setting.theorem_2 else "",
                }
            )
    return rows


def series(settings: Sequence[Setting], variable: Variable, key: str) -> tuple[Floats, Floats]:
    """Return the sizes (n,) and the excess (S, n) of a quantity along a sweep."""
    swept = [setting for setting in settings if setting.variable == variable]
    sizes = np.array([setting.size(key) for setting in swept], np.float64)
    return sizes, np.stack([setting.excess[key] for setting in swept], axis=1)


def slope_rows(settings: Sequence[Setting]) -> list[Row]:
    """Return a row for each quantity and sweep of a regime: the slope, its interval, and the bound's exponent."""
    rows: list[Row] = []
    for quantity in QUANTITIES:
        for variable in VARIABLES:
            slope = fit(*series(settings, variable, quantity.key))
            bound = quantity.exponent(variable)
            rows.append(
                {
                    "regime": settings[0].regime,
                    "quantity": quantity.key,
                    "claim": quantity.claim,
                    "sweep": variable,
                    "bound": "" if bound is None else f"{bound:+.1f}",
                    "slope": "" if slope is None else f"{slope.value:+.3f}",
                    "low": "" if slope is None else f"{slope.low:+.3f}",
                    "high": "" if slope is None else f"{slope.high:+.3f}",
                    "verdict": _verdict(slope, bound),
                }
            )
    return rows


def _verdict(slope: Slope | None, bound: float | None) -> str:
    if slope is None:
        return "negative somewhere"
    return "" if bound is None else slope.against(bound)


def markdown(rows: Sequence[Row]) -> str:
    """Return the slopes as a table: a line for each regime and quantity, a column for each sweep."""
    lines = ["| regime | excess | claim | slope in T | slope in N | slope in M |", "|---|---|---|---|---|---|"]
    width = len(VARIABLES)
    for place in range(0, len(rows), width):
        first, cells = rows[place], [_cell(row) for row in rows[place : place + width]]
        lines.append(f"| {first['regime']} | {first['quantity']} | {first['claim']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    if not row["slope"]:
        return "– (negative)"
    bound = f", bound {row['bound']}" if row["bound"] else ""
    return f"{row['slope']} [{row['low']}, {row['high']}]{bound}".replace("-", "−")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
