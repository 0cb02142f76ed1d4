"""What metrics.jsonl says, told again by code of the tests alone: the page must show the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = ("day", "night")
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def rows_of(folder: Path, rounds: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of the first rounds, or of all."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][:rounds]


def facts(rows: list[dict[str, Any]], cycles: int) -> dict[str, str]:
    """Return what the cards say."""
    last, judged = rows[-1], [row for row in rows if "accuracy" in row]
    down, up = (sum(row[f"bytes-{way}"] for row in rows) for way in ("down", "up"))
    recent = [row["seconds"] for row in rows[-20:]]
    found = {
        "Round": str(last["server-round"]),
        "Cycle": f"{last['cycle'] + 1} of {cycles}",
        "Block": NAMES[last["block"]],
        "Seconds a round": f"{sum(recent) / len(recent):.3g}",
        "Nodes online": str(last["nodes-online"]),
        "Asked in the last round": str(last["clients-asked"]),
        "Answered": str(last["clients-answered"]),
        "Rejected": str(last["clients-rejected"]),
        "Nodes in quarantine": ", ".join(last["quarantined"]) or "none",
        "To the clients": size(down),
        "From the clients": size(up),
    }
    if judged:
        mean, at = judged[-1]["mean-accuracy"], judged[-1]["server-round"]
        found["Mean accuracy"] = f"{100 * mean:.1f} %, at round {at}"
    return found


def scores(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return by evaluated round what its row of the chart's table says."""
    return {
        str(row["server-round"]): [f"{100 * one:.1f} %" for one in (*row["accuracy"], row["mean-accuracy"])]
        for row in rows
        if "accuracy" in row
    }


def won(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return by block how many rounds chose, and which chain."""
    found = {}
    for block, name in enumerate(NAMES):
        chosen = [row["chosen"] for row in rows if row["block"] == block and row["chosen"]]
        separate = chosen.count("separate")
        share = f"{100 * separate / len(chosen):.0f} %" if chosen else "-"
        found[name] = [str(len(chosen)), str(separate), str(len(chosen) - separate), share]
    return found


def size(count: float) -> str:
    unit, name = next(pair for pair in _UNITS if count >= pair[0])
    return f"{count / unit:.3g} {name}"
