"""OUTPUT/report.html: one file that needs nothing else, and OUTPUT/figures/*.png, the same figures on their own."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from perennial.server.report import drawing, plots, table
from perennial.server.report.quantities import Comparison, RejectionRow, RunResult, compare

CAPTIONS = {
    "accuracy": "Mean over blocks of the accuracy on each block's test set, at the rounds that were evaluated. "
    "Bands, where drawn, are stays in one block.",
    "accuracy-per-block": "Accuracy on each block's own test set. "
    "Bands, where drawn, are the rounds in which that block was trained.",
    "chosen": "Where both chains are trained, the one with the smaller average local loss is chosen each round. "
    "Left: over time; right: over all rounds of a block.",
    "bytes": "Mean accuracy against everything sent so far, to and from the clients.",
    "train-loss": "Average local training loss of a round, in windows. A chain that runs share is drawn once.",
}
MOST_REJECTIONS = 40
LONGEST_REASON = 200

_STYLE = """
:root { color-scheme: light dark; --ink: #22262e; --faint: #667080; --line: #dfe3e8; --ground: #fff; --tint: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --faint: #98a1ae; --line: #343b45; --ground: #15181d; --tint: #1d2127; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 2.5rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .6rem; }
p, figcaption { color: var(--faint); margin: 0 0 .8rem; max-width: 75ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .42rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; vertical-align: bottom; }
thead th { white-space: normal; }
tbody th { color: var(--ink); font-weight: 600; }
th:first-child, td:first-child, table.words th, table.words td { text-align: left; padding-left: .25rem; }
table.words tbody th, table.words td { vertical-align: top; }
table.words td { white-space: normal; overflow-wrap: anywhere; padding-right: 1.5rem; }
tbody tr:hover { background: var(--tint); }
.key { display: inline-block; width: 1.1em; height: .25em; border-radius: 2px; margin-right: .55em;
  vertical-align: .25em; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 0 2rem; margin: 0;
  font-size: .9rem; }
dl div { display: flex; justify-content: space-between; gap: 1rem; padding: .25rem;
  border-bottom: 1px solid var(--line); }
dt { color: var(--faint); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; }
figure { margin: 2rem 0; } figure img { display: block; width: 100%; height: auto; background: #fff; padding: .5rem;
  border: 1px solid var(--line); border-radius: 6px; margin-bottom: .5rem; }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
"""


def write(output: Path, runs: Sequence[RunResult], title: str) -> Path:
    """Write the figures and the report of `runs` (at least one) into `output`, and return the report's path.

    Figures of an earlier report that these runs have nothing for are removed. The same runs give the same bytes.
    """
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    images = {name: drawing.png(figure) for name, figure in plots.draw(runs).items()}
    folder = output / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for name in CAPTIONS:
        (folder / f"{name}.png").unlink(missing_ok=True)
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(image)
    path = output / "report.html"
    # Written beside and renamed, so that a report is never found half written.
    beside = output / ".report.html.part"
    beside.write_text(page(runs, title, images), encoding="utf-8")
    os.replace(beside, path)
    return path


def page(runs: Sequence[RunResult], title: str, images: Mapping[str, bytes]) -> str:
    """The report as one HTML document; `images` are PNGs by figure name. Nothing is loaded from elsewhere."""
    comparison = compare(runs)
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{_count(len(runs), 'run')}{_differing_in(comparison)}.</p>",
        _section("Summary", _note(runs) + _summary(runs)),
        _section("Cost of an accuracy", _costs(runs)),
        *(_figure(name, image) for name, image in images.items()),
        _section("Rejected updates", _rejected(runs)),
        _section("What differs", _differing(runs, comparison)),
        _section("Configuration" if len(runs) == 1 else "What is shared", _shared(comparison)),
    ]
    # The policy makes "self-contained" a thing that the browser enforces, whatever a run's name contains.
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def targets(runs: Sequence[RunResult]) -> list[float]:
    """Accuracies worth asking the cost of: the multiples of 5 % under the lowest and the highest of the runs' bests."""
    bests = [run.best.accuracy for run in runs if run.best]
    # 1e-9, as where it is reached: 0.60 / 0.05 is a little under 12 in binary.
    steps = sorted({math.floor(best / 0.05 + 1e-9) for best in bests if best in (min(bests), max(bests))})
    return [step * 5 / 100 for step in steps if step > 0]


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>\n{content}</section>" if content else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words: bool = False) -> str:
    """A table of ready HTML cells, the first of each row its heading."""
    heading = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = (
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    kind = ' class="words"' if words else ""
    body = f"<thead><tr>{heading}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>"
    return f'<div class="scroll"><table{kind}>\n{body}</table></div>\n'


def _note(runs: Sequence[RunResult]) -> str:
    if any(len(run.evaluated) for run in runs):
        return (
            "<p>Accuracies in %: means over the blocks, each block judged on its own test set; "
            "a block's column is its last one.</p>"
        )
    return "<p>No round has been evaluated yet.</p>"


def _summary(runs: Sequence[RunResult]) -> str:
    look = plots.styles(runs)
    columns = table.summary(runs)
    keys = [f'<span class="key" style="background:{look[run.name].color}"></span>' for run in runs]

    def cell(column: table.Column, row: int) -> str:
        text = (
            escape(column.cells[row]).replace("..", "–") if column.heading == "min..max" else escape(column.cells[row])
        )
        return f"<strong>{text}</strong>" if row in column.best else text

    rows = ([keys[row] + cell(columns[0], row), *(cell(c, row) for c in columns[1:])] for row in range(len(runs)))
    return _table([escape(column.heading.replace("min..max", "min–max")) for column in columns], rows)


def _costs(runs: Sequence[RunResult]) -> str:
    wanted = targets(runs)
    if not wanted:
        return ""
    size, unit = table.unit_of(max(int(run.cumulative_bytes[-1]) for run in runs if len(run.rounds)))
    head = ["run", *(f"{what} to {table.percent(goal)} %" for goal in wanted for what in ("rounds", unit, "seconds"))]
    rows = []
    for run in runs:
        row = [escape(run.name)]
        for cost in (run.reach(goal) for goal in wanted):
            reached = (
                (str(cost.server_round), table.amount(cost.bytes / size), table.amount(cost.seconds)) if cost else ()
            )
            row += reached or (table.MISSING,) * 3
        rows.append(row)
    return "<p>Until a mean accuracy was first measured to be at least as high; - : not reached.</p>" + _table(
        head, rows
    )


def _figure(name: str, image: bytes) -> str:
    source = base64.b64encode(image).decode("ascii")
    caption = escape(CAPTIONS[name])
    return (
        f'<figure id="{name}"><img alt="{caption}" src="data:image/png;base64,{source}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _rejected(runs: Sequence[RunResult]) -> str:
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
    if any(count for _, count in lost):
        said = "; ".join(f"{escape(name)}: {_count(count, 'client')}" for name, count in lost if count)
        parts.append(f"<p>Clients whose work was not taken, counted once an attempt: {said}.</p>")
    if rows:
        parts.append(_table(["run", "node", "clients", "times", "rounds", "reason"], rows, words=True))
    if len(ranked) > MOST_REJECTIONS:
        parts.append(f"<p>And {len(ranked) - MOST_REJECTIONS} rarer ones, all in metrics.jsonl.</p>")
    benched = [
        [escape(run.name), escape(node), str(count)] for run in runs for node, count in sorted(run.quarantined.items())
    ]
    if benched:
        parts.append("<h2>In quarantine</h2>\n" + _table(["run", "node", "rounds sat out"], benched, words=True))
    return "".join(parts)


def _clients(found: Sequence[RejectionRow]) -> str:
    clients = sorted({client for entry in found for client in entry.clients})
    shown = ", ".join(str(client) for client in clients[:8])
    return shown + (f" and {len(clients) - 8} more" if len(clients) > 8 else "")


def _span(found: Sequence[RejectionRow]) -> str:
    first, last = found[0].server_round, found[-1].server_round
    return str(first) if first == last else f"{first}–{last}"


def _differing_in(comparison: Comparison) -> str:
    keys = list(comparison.differing)
    return f", differing in {escape(', '.join(keys[:6]))}{' and more' if len(keys) > 6 else ''}" if keys else ""


def _differing(runs: Sequence[RunResult], comparison: Comparison) -> str:
    keys = list(comparison.differing)
    rows = (
        [escape(run.name), *(escape(_value(comparison.differing[key][place])) for key in keys)]
        for place, run in enumerate(runs)
    )
    return _table(["run", *(escape(key) for key in keys)], rows, words=True) if keys else ""


def _shared(comparison: Comparison) -> str:
    pairs = (
        f"<div><dt>{escape(key)}</dt><dd>{escape(_value(value))}</dd></div>" for key, value in comparison.shared.items()
    )
    return f"<dl>{''.join(pairs)}</dl>\n" if comparison.shared else ""


def _value(value: object) -> str:
    """A setting as it is written in YAML."""
    if value is None:
        return table.MISSING
    return str(value).lower() if isinstance(value, bool) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
