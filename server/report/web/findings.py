"""What the runs of a page have to say in tables: summary, costs, what was rejected, and how they differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from perennial.server.report import markup, table
from perennial.server.report.columns import RejectionRow, RunResult
from perennial.server.report.comparison import Comparison
from perennial.server.report.quantities import best, reach
from perennial.server.report.scale import MISSING, shared
from perennial.server.report.styles import styles

MOST_REJECTIONS = 40
LONGEST_REASON = 200


def targets(runs: Sequence[RunResult]) -> list[float]:
    """Accuracies worth asking the cost of: the multiples of 5 % under the lowest and the highest of the runs' bests.

    Of another score, the runs' bests that are furthest apart themselves; none if the runs have different scores.
    """
    bests = [best(run.evaluated) for run in runs if len(run.evaluated)]
    scale = shared(run.scale for run in runs)
    if not scale.in_percent:
        return sorted({min(bests), max(bests)}) if bests and scale.better else []
    # 1e-9, as where it is reached: 0.60 / 0.05 is a little under 12 in binary.
    steps = sorted({math.floor(value / 0.05 + 1e-9) for value in bests if value in (min(bests), max(bests))})
    return [step * 5 / 100 for step in steps if step > 0]


def diverged(runs: Sequence[RunResult]) -> str:
    """Which runs are no results, first of all; empty if all are."""
    said = [f"{escape(run.name)}: {escape(str(one))}." for run in runs for one in run.diverged]
    return f"<p><strong>{'<br>'.join(said)} What was measured after that is no result.</strong></p>" if said else ""


def note(runs: Sequence[RunResult]) -> str:
    if any(len(run.evaluated) for run in runs):
        return (
            f"<p>{escape(_heading(runs))}: means over the blocks, each block judged on its own test set; "
            "a block's column is its last one. The last cycle is the last that is whole.</p>"
        )
    return "<p>No round has been evaluated yet.</p>"


def _heading(runs: Sequence[RunResult]) -> str:
    scale = shared(run.scale for run in runs)
    if not scale.better:
        return "Scores, of which each run has its own"
    return "Accuracies in %" if scale.in_percent else f"{scale.name.capitalize()}, of which {scale.better} is better"


def named(text: str, runs: Sequence[RunResult]) -> str:
    """Return what is said of accuracy as it is said of the runs' score."""
    name = shared(run.scale for run in runs).name
    return text if name == "accuracy" else text.replace("an accuracy", f"a level of {name}").replace("accuracy", name)


def summary(runs: Sequence[RunResult]) -> str:
    look = styles(runs)
    columns = table.summary(runs)
    keys = [markup.key(look[run.name]) for run in runs]

    def cell(column: table.Column, row: int) -> str:
        text = (
            escape(column.cells[row]).replace("..", "–") if column.heading == "min..max" else escape(column.cells[row])
        )
        return f"<strong>{text}</strong>" if row in column.best else text

    rows = ([keys[row] + cell(columns[0], row), *(cell(c, row) for c in columns[1:])] for row in range(len(runs)))
    heads = [escape(column.heading.replace("min..max", "min–max")) for column in columns]
    return markup.table(heads, rows, ident="runs", label="Summary")


def costs(runs: Sequence[RunResult]) -> str:
    wanted = targets(runs)
    if not wanted:
        return ""
    size, unit = table.unit_of(max(int(run.rounds.bytes.sum()) for run in runs))
    scale = shared(run.scale for run in runs)
    goals = [escape(f"{scale.text(goal)}{scale.unit}") for goal in wanted]
    head = ["run", *(f"{what} to {goal}" for goal in goals for what in ("rounds", unit, "seconds"))]
    rows = []
    for run in runs:
        row = [escape(run.name)]
        for cost in (reach(run.evaluated, goal) for goal in wanted):
            reached = (
                (str(cost.server_round), table.amount(cost.bytes / size), table.amount(cost.seconds)) if cost else ()
            )
            row += reached or (MISSING,) * 3
        rows.append(row)
    note = "high" if scale.better == "higher" else "low"
    said = named(f"Until a mean accuracy was first measured to be at least as {note}; - : not reached.", runs)
    return f"<p>{escape(said)}</p>" + markup.table(head, rows, ident="reached", label="Costs")


def rejected(runs: Sequence[RunResult]) -> str:
    """What was refused, by whom and why, and who sat out; empty if all was well."""
    groups: dict[tuple[str, str, str], list[RejectionRow]] = {}
    for run in runs:
        for entry in run.rejections:
            groups.setdefault((run.name, entry.node, entry.reason[:LONGEST_REASON]), []).append(entry)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [
        [escape(name), escape(node), _clients(found), str(len(found)), _span(found), escape(reason)]
        for (name, node, reason), found in ranked[:MOST_REJECTIONS]
    ]
    parts = []
    lost = [(run.name, int(run.rounds.clients_rejected.sum())) for run in runs]
    if any(clients for _, clients in lost):
        said = "; ".join(f"{escape(name)}: {count(clients, 'client')}" for name, clients in lost if clients)
        parts.append(f"<p>Clients whose work was not taken, counted once an attempt: {said}.</p>")
    if rows:
        parts.append(
            markup.table(
                ["run", "node", "clients", "times", "rounds", "reason"],
                rows,
                words=True,
                ident="rejections",
                label="Rejected updates",
            )
        )
    if len(ranked) > MOST_REJECTIONS:
        parts.append(f"<p>And {len(ranked) - MOST_REJECTIONS} rarer ones, all in metrics.jsonl.</p>")
    benched = [
        [escape(run.name), escape(node), str(count)] for run in runs for node, count in sorted(run.quarantined.items())
    ]
    if benched:
        sat_out = markup.table(
            ["run", "node", "rounds sat out"], benched, words=True, ident="benched", label="Quarantine"
        )
        parts.append(f"<h3>In quarantine</h3>\n{sat_out}")
    return "".join(parts)


def _clients(found: Sequence[RejectionRow]) -> str:
    clients = sorted({client for entry in found for client in entry.clients})
    shown = ", ".join(str(client) for client in clients[:8])
    return shown + (f" and {len(clients) - 8} more" if len(clients) > 8 else "")


def _span(found: Sequence[RejectionRow]) -> str:
    first, last = found[0].server_round, found[-1].server_round
    return str(first) if first == last else f"{first}–{last}"


def differing_in(comparison: Comparison) -> str:
    keys = list(comparison.differing)
    return f", differing in {escape(', '.join(keys[:6]))}{' and more' if len(keys) > 6 else ''}" if keys else ""


def differing(runs: Sequence[RunResult], comparison: Comparison) -> str:
    keys = list(comparison.differing)
    rows = (
        [escape(run.name), *(escape(_value(comparison.differing[key][place])) for key in keys)]
        for place, run in enumerate(runs)
    )
    return markup.table(["run", *(escape(key) for key in keys)], rows, words=True, label="What differs") if keys else ""


def settings(comparison: Comparison) -> str:
    pairs = (
        f"<div><dt>{escape(key)}</dt><dd>{escape(_value(value))}</dd></div>" for key, value in comparison.shared.items()
    )
    return f"<dl>{''.join(pairs)}</dl>\n" if comparison.shared else ""


def _value(value: object) -> str:
    """A setting as it is written in YAML."""
    if value is None:
        return MISSING
    return str(value).lower() if isinstance(value, bool) else str(value)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
