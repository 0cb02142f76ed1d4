"""Columns of a table as arrays: from CSV, or from Parquet if pyarrow is installed. Rows are counted from 1 in errors.

A column as it is read is an array of numbers, of datetime64 (wall times) or of text (object).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from math import floor
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from perennial.common.command import extras
from perennial.common.command.errors import InputError, shown

Column = NDArray[Any]
# What the calendar and the files of samples with timestamps take: 1970 to 2100.
_LATEST = 4_102_444_800
_LARGEST = float(np.finfo(np.float32).max)


def read(path: Path, names: Sequence[str], *, others: bool = False) -> dict[str, Column]:
    """Return the named columns of a table, and if asked all others; ``*.parquet`` is Parquet, anything else CSV."""
    try:
        found = (_parquet if path.suffix == ".parquet" else _csv)(path, names, others)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if not found or not len(next(iter(found.values()))):
        raise InputError(f"{path} has no rows")
    return found


def numbers(column: Column, name: str, where: object) -> NDArray[Any]:
    """Return a column as int64 if all of it is whole numbers, else as float64; the first row that is none is named."""
    if column.dtype.kind in "biu":
        return column.astype(np.float64 if column.dtype == np.uint64 else np.int64)
    if column.dtype.kind == "O":
        for kind in (np.int64, np.float64):
            try:
                column = column.astype(str).astype(kind)
                break
            except (ValueError, OverflowError):
                continue
    if column.dtype.kind not in "if":
        row = next(row for row, value in enumerate(column.tolist()) if not _is_number(value))
        raise InputError(f"{where}: column {name} must hold numbers, got {shown(_plain(column[row]))} in row {row + 1}")
    # Not finite, or not as float32.
    if column.dtype.kind == "f" and not (fits := np.abs(column) < _LARGEST).all():
        row = int(np.argmin(fits))
        raise InputError(f"{where}: column {name} must hold numbers, got {column[row]} in row {row + 1}")
    return column


def times(column: Column, name: str, where: object, zone: str) -> NDArray[np.int64]:
    """Return a column as seconds since 1970 in UTC; the first row that is no time is named.

    Whole numbers are such seconds; text is ISO 8601. A time without an offset is one of the wall clock in ``zone``.
    """
    if column.dtype.kind in "iu":
        seconds = column.astype(np.int64)
    else:
        known: dict[Any, int] = {}
        seconds = np.empty(len(column), np.int64)
        for row, value in enumerate(column.tolist() if column.dtype.kind == "O" else column):
            if value not in known:
                known[value] = _second(value, ZoneInfo(zone))
            seconds[row] = known[value]
    wrong = (seconds < 0) | (seconds >= _LATEST)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(
            f"{where}: column {name} must hold times from 1970 to 2099, as 2026-03-27T12:00 or in seconds since 1970, "
            f"got {shown(_plain(column[row]))} in row {row + 1}"
        )
    return seconds


def codes(column: Column, name: str, where: object) -> tuple[NDArray[np.int64], list[object]]:
    """Return for each row the place of its value among all values, and those, sorted: by size if they are numbers."""
    if column.dtype.kind == "O":
        column = column.astype(str)
        if (empty := column == "").any():
            raise InputError(f"{where}: column {name} is empty in row {int(np.argmax(empty)) + 1}")
        column = _as_whole(column)
    if column.dtype.kind not in "biuU":
        raise InputError(f"{where}: column {name} must hold names or whole numbers, got {column.dtype}")
    values, inverse = np.unique(column, return_inverse=True)
    return inverse.astype(np.int64), values.tolist()


def _csv(path: Path, names: Sequence[str], others: bool) -> dict[str, Column]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            places = _places(header, names, others, path)
            cells: list[list[str]] = [[] for _ in places]
            for number, row in enumerate(rows, 1):
                if len(row) != len(header):
                    raise InputError(f"{path}: row {number} has {len(row)} cells, the header has {len(header)}")
                for kept, place in zip(cells, places.values(), strict=True):
                    kept.append(row[place])
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} cannot be read as CSV: {error}") from error
    return {name: np.array(kept, object) for name, kept in zip(places, cells, strict=True)}


def _parquet(path: Path, names: Sequence[str], others: bool) -> dict[str, Column]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            f"{path}: to read Parquet install pyarrow ({extras.install('tables')}), or save the table as CSV"
        ) from error
    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from error
    places = _places(table.column_names, names, others, path)
    return {name: from_arrow(table.column(place), name, path) for name, place in places.items()}


def from_arrow(column: Any, name: str, where: object) -> Column:
    """Return a column of Arrow: times with a zone as seconds in UTC."""
    from pyarrow import types

    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise InputError(f"{where}: column {name} is empty in row {row + 1}")
    kind = column.type
    if types.is_timestamp(kind) or types.is_date(kind):
        seconds: Column = column.to_numpy().astype("datetime64[s]")
        return seconds.astype(np.int64) if types.is_timestamp(kind) and kind.tz else seconds
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(column.to_numpy())
    return np.array([str(value) for value in column.to_pylist()], object)


def _places(header: Sequence[str], names: Sequence[str], others: bool, path: Path) -> dict[str, int]:
    """Return where the columns are that are asked for."""
    wanted = [*names, *(name for name in header if others and name not in names)]
    for name in wanted:
        if header.count(name) != 1:
            there = "is there twice" if name in header else f"is not there; the columns are {', '.join(header)[:300]}"
            raise InputError(f"{path}: column {shown(name)} {there}")
    return {name: header.index(name) for name in wanted}


def _second(value: object, zone: ZoneInfo) -> int:
    """Return seconds since 1970 in UTC; -1 if ``value`` is no time."""
    if isinstance(value, np.datetime64):
        value = str(value.astype("datetime64[s]"))
    text = str(value).strip()
    try:
        moment = datetime.fromisoformat(text)
        return floor((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp())
    except (ValueError, OverflowError):
        return int(text) if text.isdecimal() and len(text) < 19 else -1


def _as_whole(column: Column) -> Column:
    """Return text as whole numbers if all of it is some, written plainly: 7 and 007 are two names."""
    try:
        numbers = column.astype(np.int64)
    except (ValueError, OverflowError):
        return column
    return numbers if (numbers.astype(str) == column).all() else column


def _is_number(value: object) -> bool:
    try:
        np.array([str(value)]).astype(np.float64)
    except ValueError:
        return False
    return True


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value
