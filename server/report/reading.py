"""A run's folder, read back into columns."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from perennial.common.command.errors import InputError
from perennial.server.predict.versions import FINAL, MANIFEST, numbers, path_of, read_manifest
from perennial.server.report.columns import MIXED, NONE, SEPARATE, RejectionRow, Rounds, RunResult, VersionRow
from perennial.server.report.scale import ACCURACY, Scale
from perennial.server.run.metrics import read_row
from perennial.server.run.tree import DamagedError

LOG = logging.getLogger("perennial")
_CODES = {None: NONE, "mixed": MIXED, "separate": SEPARATE}
_REQUIRED = ("server_round", "cycle", "block", "round_in_block")
_FLOATS = ("train_loss_mixed", "train_loss_separate", "loss_mixed", "loss_separate", "mean_accuracy")
_DEFAULTS = {"attempts": 1, "chosen": None}


def read(folder: Path, name: str | None = None) -> RunResult:
    """Read a run's folder; it is named as the folder is unless `name` is given.

    A last line of metrics.jsonl that was cut off is left out, and one that is damaged too, which is said; anything else
    unreadable is an InputError.
    """
    config = _mapping(folder / "config.yaml", yaml.safe_load)
    records = _records(folder / "metrics.jsonl")
    return read_with(folder, config, records, name)


def read_with(
    folder: Path, config: Mapping[str, object], records: Sequence[Mapping[str, Any]], name: str | None = None
) -> RunResult:
    """Read a run's folder whose configuration and rounds are known."""
    path = folder / FINAL / MANIFEST
    manifest = _mapping(path, json.loads) if path.exists() else {}
    try:
        run = from_records(name or folder.resolve().name, config, records, manifest)
        touched = datetime.fromtimestamp((folder / "metrics.jsonl").stat().st_mtime, UTC)
        return replace(run, touched=touched, versions=tuple(_versions(folder)))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{folder / 'metrics.jsonl'}: not the metrics of a run: {error}") from error


def read_all(output: Path) -> list[RunResult]:
    """Read `output` if it is a run's folder itself, else every run's folder directly in it, sorted by name."""
    if (output / "metrics.jsonl").is_file():
        return [read(output)]
    folders = sorted(path.parent for path in output.glob("*/metrics.jsonl"))
    if not folders:
        raise InputError(f"{output}: no run here: neither it nor a folder in it has a metrics.jsonl")
    return [read(folder) for folder in folders]


def from_records(
    name: str,
    config: Mapping[str, object],
    records: Sequence[Mapping[str, Any]],
    manifest: Mapping[str, object] | None = None,
) -> RunResult:
    """Build a run from the objects of its metrics.jsonl. A mean accuracy that is not recorded is computed."""
    for key in (column.replace("_", "-") for column in _REQUIRED):
        if any(key not in record for record in records):
            raise ValueError(f"a round has no {key}")
    scale = _scale(records)
    if scale != ACCURACY:
        records = [_with_score_as_accuracy(record) for record in records]
    known = config.get("blocks")
    blocks = max(
        [known if isinstance(known, int) else 1]
        + [max(int(record["block"]) + 1, len(record.get("accuracy") or ())) for record in records]
    )
    columns = {item.name: _column(item.name, records) for item in fields(Rounds) if item.name != "accuracy"}
    accuracy = np.full((len(records), blocks), np.nan)
    for index, record in enumerate(records):
        measured = record.get("accuracy") or ()
        accuracy[index, : len(measured)] = np.array(measured, dtype=np.float64)
        if measured and np.isnan(columns["mean_accuracy"][index]) and not np.isnan(accuracy[index]).all():
            columns["mean_accuracy"][index] = np.nanmean(accuracy[index])
    if np.any(np.diff(columns["server_round"]) <= 0):
        raise ValueError("server-round must ascend; a round is there twice")
    rejections = tuple(_rejections(records))
    quarantined = Counter(str(node) for record in records for node in record.get("quarantined") or ())
    rounds = Rounds(accuracy=accuracy, **columns)
    last: Mapping[str, Any] = records[-1] if records else {}
    online, held = last.get("nodes-online"), tuple(str(node) for node in last.get("quarantined") or ())
    return RunResult(
        name,
        config,
        rounds,
        manifest or {},
        rejections,
        quarantined,
        scale,
        online=online if isinstance(online, int) else None,
        sitting_out=held,
    )


def _versions(folder: Path) -> Iterable[VersionRow]:
    """Return what the versions that are kept say of themselves; one that is just removed, or damaged, is left out."""
    for number in reversed(numbers(folder)):
        with suppress(DamagedError, InputError, TypeError, ValueError, KeyError, IndexError):
            manifest = read_manifest(path_of(folder, number))
            slot, scores = manifest["slot"], manifest["scores"]
            yield VersionRow(
                number,
                str(manifest["published"]),
                int(slot["server-round"]),
                int(slot["block"]),
                tuple(None if one is None else float(one) for one in scores),
            )


def _scale(records: Sequence[Mapping[str, Any]]) -> Scale:
    """Return what the scores of the rounds are; rounds that name none have accuracies."""
    named = next((record for record in records if "score" in record), None)
    return ACCURACY if named is None else Scale(str(named["score"]), str(named["better"]))


def _with_score_as_accuracy(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record with its scores where the columns have accuracies."""
    return {**record, "accuracy": record.get("scores"), "mean-accuracy": record.get("mean-score")}


def _column(name: str, records: Sequence[Mapping[str, Any]]) -> NDArray[Any]:
    key = name.replace("_", "-")
    if name in _FLOATS:
        return np.array([record.get(key) for record in records], dtype=np.float64)
    values = [record.get(key, _DEFAULTS.get(name, 0)) for record in records]
    if name == "chosen":
        return np.array([_CODES[value] for value in values], dtype=np.int64)
    return np.array(values, dtype=np.float64 if name == "seconds" else np.int64)


def _rejections(records: Iterable[Mapping[str, Any]]) -> Iterable[RejectionRow]:
    for record in records:
        for entry in record.get("rejections") or ():
            clients = tuple(int(client) for client in entry.get("clients") or ())
            node, reason = str(entry.get("node", "")), str(entry.get("reason", ""))
            yield RejectionRow(int(record["server-round"]), node, clients, reason)


def _mapping(path: Path, parse: Any) -> Mapping[str, object]:
    try:
        value = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: must be a mapping, got {type(value).__name__}")
    return value


def _records(path: Path) -> list[Mapping[str, Any]]:
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    sound = [(number, row) for number, line in enumerate(lines, start=1) if (row := read_row(line)) is not None]
    if not sound:
        return _unchecked(path, lines)
    # A run that was killed, or is still going, may have half a line at the end.
    whole = len(lines) if lines[-1].endswith(b"\n") else len(lines) - 1
    damaged = [number for number in range(1, whole + 1) if number not in {place for place, _ in sound}]
    if damaged:
        named = ", ".join(map(str, damaged[:10])) + (", …" if len(damaged) > 10 else "")
        LOG.warning("%s is damaged in line %s; the report is of the other rounds", path, named)
    return [row for _, row in sound]


def _unchecked(path: Path, lines: Sequence[bytes]) -> list[Mapping[str, Any]]:
    """Return rows without checksums, as others may write them."""
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise InputError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: must be an object, got {type(record).__name__}")
        records.append(record)
    return records
