"""How a run stands: the dial, its round and pace, the fleet, what was sent, who won, and what is published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape

import numpy as np

from perennial.server.report import markup
from perennial.server.report.columns import RunResult
from perennial.server.report.scale import MISSING
from perennial.server.report.web import dial
from perennial.server.report.web.position import block_said, dial_of, duration, left, pace, total_rounds


def leading(runs: Sequence[RunResult]) -> RunResult:
    """The run whose round is under way, or was the last: of those that move together, the first one."""
    times = [run.touched.timestamp() if run.touched else 0.0 for run in runs]
    # Runs of one training write their lines within the same moment.
    newest = max(times)
    return next(run for run, time in zip(runs, times, strict=True) if time > newest - 1.0)


def now(runs: Sequence[RunResult], instant: datetime | None) -> str:
    """The dial, and beside it where the leading run is, its fleet and what it has sent."""
    run = leading(runs)
    name = f'<p class="of">{escape(run.name)}</p>' if len(runs) > 1 else ""
    groups = [("Round", _round(run, instant)), ("Fleet", _fleet(run)), ("Sent", _sent(run))]
    cards = "".join(
        f'<div class="card"><h3>{title}</h3>{markup.facts(facts)}</div>' for title, facts in groups if facts
    )
    return f'{name}<div class="now">{dial.draw(dial_of(run, instant))}<div class="cards">{cards}</div></div>'


def place(runs: Sequence[RunResult]) -> str:
    """The cycle and the block that the leading run is in, in a few words which change seldom."""
    run = leading(runs)
    if not len(run.rounds):
        return "The first round has not ended yet."
    return f"Cycle {int(run.rounds.cycle[-1]) + 1}, {block_said(run.block_names[int(run.rounds.block[-1])])}."


def who_won(runs: Sequence[RunResult]) -> str:
    """How many rounds of each block each chain won; empty if none was chosen."""
    rows = []
    for run in runs:
        if not run.rounds.votes.any():
            continue
        for block, name in enumerate(run.block_names):
            here = run.rounds.block == block
            votes, won = int(run.rounds.votes[here].sum()), int(run.rounds.won[here].sum())
            share = markup.bar(won / votes) + f"{100 * won / votes:.0f} %" if votes else MISSING
            label = name if len(runs) == 1 else f"{run.name}: {name}"
            rows.append([escape(label), str(votes), str(won), str(votes - won), share])
    if not rows:
        return ""
    head = ["block", "rounds that chose", "separate chain", "mixed chain", "share of the separate chain"]
    said = "The chain with the smaller average loss on the clients' own data wins a round, and goes into the predictor."
    return f"<p>{said}</p>" + markup.table(head, rows, ident="won", label="Which chain won, by block")


def published(runs: Sequence[RunResult]) -> str:
    """The versions that are kept, the newest first; empty if there is none."""
    several = len(runs) > 1
    rows = []
    for run in runs:
        for version in run.versions:
            measured = [score for score in version.scores if score is not None]
            rows.append(
                [
                    escape(f"{run.name}: {version.number}" if several else str(version.number)),
                    escape(version.published.replace("T", " ")),
                    str(version.server_round),
                    escape(run.block_names[version.block]),
                    run.scale.text(sum(measured) / len(measured) if measured else math.nan),
                    ", ".join(run.scale.text(math.nan if one is None else one) for one in version.scores),
                ]
            )
    if not rows:
        return ""
    unit = " %" if all(run.scale.in_percent for run in runs) else ""
    head = ["version", "published", "after round", "in block", f"mean{unit}", f"of each block{unit}"]
    return markup.table(head, rows, ident="versions", label="Published versions")


def _round(run: RunResult, instant: datetime | None) -> list[tuple[str, str]]:
    rounds, total, cycles = run.rounds, total_rounds(run.config), run.config.get("cycles")
    if not len(rounds):
        return [("Round", "none yet")]
    number, cycle = int(rounds.server_round[-1]), int(rounds.cycle[-1]) + 1
    found = run.evaluated
    facts = [
        ("Round", f"{number} of {total}" if total else str(number)),
        ("Cycle", f"{cycle} of {cycles}" if isinstance(cycles, int) else str(cycle)),
        ("Block", run.block_names[int(rounds.block[-1])]),
        ("Seconds a round", f"{pace(run):.3g}"),
        ("Trained for", duration(float(rounds.seconds.sum()))),
        ("Time left", left(run, instant)),
    ]
    if len(found):
        value = run.scale.text(float(found.mean_accuracy[-1])) + run.scale.unit
        facts.append((f"Mean {run.scale.name}", f"{value}, at round {int(found.server_round[-1])}"))
    return facts


def _fleet(run: RunResult) -> list[tuple[str, str]]:
    rounds = run.rounds
    if not len(rounds):
        return []
    asked, answered, rejected = (
        int(column[-1]) for column in (rounds.clients_asked, rounds.clients_answered, rounds.clients_rejected)
    )
    return [
        *([("Nodes online", str(run.online))] if run.online is not None else []),
        ("Asked in the last round", str(asked)),
        ("Answered", str(answered)),
        ("Rejected", str(rejected)),
        ("Rejected in all", f"{int(rounds.clients_rejected.sum()):,}"),
        ("Nodes in quarantine", ", ".join(run.sitting_out[:8]) or "none"),
    ]


def _sent(run: RunResult) -> list[tuple[str, str]]:
    rounds = run.rounds
    if not rounds.bytes.any():
        return []
    return [
        ("To the clients", markup.size(int(rounds.bytes_down.sum()))),
        ("From the clients", markup.size(int(rounds.bytes_up.sum()))),
        ("A round", markup.size(float(np.mean(rounds.bytes)))),
    ]
