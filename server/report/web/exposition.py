"""What Prometheus reads of runs, as its text format 0.0.4.

Written by hand: prometheus_client is no dependency of a server that trains, and its counters cannot be set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from perennial.server.report.columns import MIXED, SEPARATE, RunResult

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "perennial_run_"
Values = Iterable[tuple[Mapping[str, str], float]]


def exposition(runs: Sequence[RunResult]) -> str:
    """Return all metrics of the runs."""
    lines = []
    for name, kind, said, values in _METRICS:
        samples = [
            f"{_PREFIX}{name}{_labels({'run': run.name, **labels})} {value!r}"
            for run in runs
            if len(run.rounds)
            for labels, value in values(run)
            if math.isfinite(value)
        ]
        if samples:
            lines += [f"# HELP {_PREFIX}{name} {said}", f"# TYPE {_PREFIX}{name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _one(value: Callable[[RunResult], float]) -> Callable[[RunResult], Values]:
    return lambda run: [({}, float(value(run)))]


def _scores(run: RunResult) -> Values:
    found = run.evaluated
    return [({"block": name}, float(score)) for name, score in zip(run.block_names, found.accuracy[-1], strict=True)
            ] if len(found) else []  # fmt: skip


def _chosen(run: RunResult) -> Values:
    chains = (("mixed", MIXED), ("separate", SEPARATE))
    return [({"chain": chain}, float((run.rounds.chosen == code).sum())) for chain, code in chains]


def _online(run: RunResult) -> Values:
    return [] if run.online is None else [({}, float(run.online))]


_METRICS: tuple[tuple[str, str, str, Callable[[RunResult], Values]], ...] = (
    ("rounds_total", "counter", "Rounds that are over.", _one(lambda run: int(run.rounds.server_round[-1]))),
    ("cycle", "gauge", "The cycle of the last round, from 0.", _one(lambda run: int(run.rounds.cycle[-1]))),
    ("block", "gauge", "1 at the block of the last round, else 0.",
     lambda run: [({"block": name}, float(run.rounds.block[-1] == at)) for at, name in enumerate(run.block_names)]),
    ("seconds_total", "counter", "Seconds in rounds.", _one(lambda run: float(run.rounds.seconds.sum()))),
    ("last_round_seconds", "gauge", "Seconds of the last round.", _one(lambda run: float(run.rounds.seconds[-1]))),
    ("last_line_timestamp_seconds", "gauge", "When the last round was written, in seconds since 1970.",
     _one(lambda run: run.touched.timestamp() if run.touched else math.nan)),
    ("down_bytes_total", "counter", "Bytes sent to clients.", _one(lambda run: int(run.rounds.bytes_down.sum()))),
    ("up_bytes_total", "counter", "Bytes sent by clients.", _one(lambda run: int(run.rounds.bytes_up.sum()))),
    ("clients_asked_total", "counter", "Clients asked.", _one(lambda run: int(run.rounds.clients_asked.sum()))),
    ("clients_answered_total", "counter", "Clients that answered.",
     _one(lambda run: int(run.rounds.clients_answered.sum()))),
    ("clients_rejected_total", "counter", "Clients whose work was not taken.",
     _one(lambda run: int(run.rounds.clients_rejected.sum()))),
    ("nodes_online", "gauge", "Nodes online at the last round.", _online),
    ("nodes_quarantined", "gauge", "Nodes that sat the last round out.", _one(lambda run: len(run.sitting_out))),
    ("chosen_total", "counter", "Rounds that each chain has won.", _chosen),
    ("block_score", "gauge", "Each block's score when it was last evaluated.", _scores),
    ("mean_score", "gauge", "The mean over blocks when it was last evaluated.",
     _one(lambda run: float(run.evaluated.mean_accuracy[-1]) if len(run.evaluated) else math.nan)),
    ("version", "gauge", "The newest published version; 0: none.",
     _one(lambda run: run.versions[0].number if run.versions else 0)),
)  # fmt: skip


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
