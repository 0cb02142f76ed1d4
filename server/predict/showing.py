"""``flower-predict show``: what a run has published, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perennial.server.predict.loading import PublishedVersion, open_version
from perennial.server.predict.versions import file_of, numbers


def show(run: Path, version: int | None) -> int:
    """Print the blocks of a version, and which versions there are."""
    found = open_version(run, version)
    said = found.manifest
    print(
        f"{run}: {said['strategy']}, version {found.number} of {said['published']}, "
        f"round {said['slot']['server-round']}"
    )
    print(f"schedule: {_schedule(said['schedule'])}")
    print(f"model: {_model(said['model'])}")
    print(f"versions: {', '.join(map(str, numbers(run))) or 'the final one alone'}")
    print()
    for line in table(_rows(found)):
        print(line)
    return 0


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rows(found: PublishedVersion) -> list[tuple[str, ...]]:
    said = found.manifest
    rows: list[tuple[str, ...]] = [("block", said["score"], "folded", "last trained", "bytes")]
    columns = zip(found.blocks, said["scores"], said["folded"], said["trained"], found.trained, strict=True)
    for number, (name, score, folded, trained, there) in enumerate(columns):
        size = (found.place / file_of(number)).stat().st_size if there else 0
        measured = "not measured" if score is None else f"{score:.4f}"
        rows.append((name, measured if there else "–", str(folded), trained or "not yet", f"{size:,}"))
    return rows


def _schedule(schedule: dict[str, Any]) -> str:
    if schedule.get("clock"):
        return f"{schedule['clock']} ({schedule['timezone']})"
    return f"by rounds, {schedule.get('rounds-per-block', 'some')} for each block; it has no clock"


def _model(model: dict[str, Any] | None) -> str:
    if model is None:
        return "none named; only load_predictor gives the arrays"
    return f"{model['name']}, task {model.get('task', 'classification')}"
