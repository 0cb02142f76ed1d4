"""Configurations side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perennial.server.report.columns import RunResult

# Where a run is kept says nothing about what it is.
_NOT_COMPARED = frozenset({"output"})


@dataclass(frozen=True)
class Comparison:
    """Keys with one value in all of the runs, and keys with a value for each run."""

    shared: Mapping[str, object]
    differing: Mapping[str, tuple[object, ...]]  # None: the run does not have the key


def compare(runs: Sequence[RunResult]) -> Comparison:
    """Sort the runs' configuration keys into shared and differing, in order of first appearance."""
    keys = [key for key in dict.fromkeys(key for run in runs for key in run.config) if key not in _NOT_COMPARED]
    columns = {key: tuple(run.config.get(key) for run in runs) for key in keys}
    same = {key: values[0] for key, values in columns.items() if all(value == values[0] for value in values)}
    return Comparison(same, {key: values for key, values in columns.items() if key not in same})
