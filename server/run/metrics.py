"""metrics.jsonl: one line for each round, each of which says its run and carries a checksum of its own.

{"server-round": 1, …, "run": "5f0c…", "crc": "0a1b2c3d"}    crc: CRC-32 of what stands before it in the line
"""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perennial.common.command.errors import InputError
from perennial.server.run.files import patiently

LOG = logging.getLogger("perennial")
_END = re.compile(rb', "crc": "([0-9a-f]{8})"\}\n')
_END_BYTES = len(b', "crc": "00000000"}\n')
_NAMED = 10


@dataclass(frozen=True)
class Mark:
    """A place in a metrics file, at the end of a line. crc: CRC-32 of all that stands before it."""

    position: int = 0
    crc: int = 0


@dataclass(frozen=True)
class Rows:
    """What a metrics file holds. damaged: the numbers of its other lines, from 1. end: the mark of what was read."""

    rows: tuple[dict[str, Any], ...]
    damaged: tuple[int, ...]
    end: Mark

    @property
    def runs(self) -> set[str]:
        """The runs that the rows are of: one, unless files were mixed up."""
        return {row["run"] for row in self.rows}


def read_rows(path: Path, position: int | None = None) -> Rows:
    """Return the rows before ``position``, or all of them; a missing file has none.

    A file that is still written may end in half a line, which is left out: only before ``position`` is it damage.
    """
    rows: list[dict[str, Any]] = []
    damaged: list[int] = []
    end = Mark()
    for number, line in enumerate(_lines(path, position), start=1):
        if position is None and not line.endswith(b"\n"):
            break
        row = read_row(line)
        if row is None:
            damaged.append(number)
        else:
            rows.append(row)
        end = Mark(end.position + len(line), zlib.crc32(line, end.crc))
    return Rows(tuple(rows), tuple(damaged), end)


class MetricsFile:
    """A run's metrics, open at the end of what counts."""

    def __init__(self, path: Path, run: str, mark: Mark | None = None) -> None:
        """Begin anew, or go on at ``mark``: what the file has after it is cut off, what it has before it is checked.

        Lines that are damaged or missing are said, and what is left is used; rows of another run are an InputError.
        """
        self._path, self._run = path, run
        self._mark = Mark() if mark is None else _checked(path, run, mark)
        fresh = mark is None or not path.exists()
        self._file = patiently(lambda: path.open("w+b" if fresh else "r+b", buffering=0), path)
        self._file.truncate(self._mark.position)
        if self._mark.position:
            self._file.seek(self._mark.position - 1)
            if self._file.read(1) != b"\n":
                # The line's end was damaged: without one, the next row would be lost with it.
                self._write(b"\n")

    def append(self, row: dict[str, Any]) -> None:
        text = json.dumps({**row, "run": self._run}).encode()[:-1]
        self._write(text + b', "crc": "%08x"}\n' % zlib.crc32(text))

    def mark(self) -> Mark:
        """Return where the next row goes."""
        return self._mark

    def sync(self) -> None:
        """Have every row on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _write(self, line: bytes) -> None:
        """Write a line whole or not at all: what a full disk left of it would spoil the next one."""
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            self._file.truncate(self._mark.position)
            self._file.seek(self._mark.position)
            error.filename = str(self._path)
            raise
        self._mark = Mark(self._mark.position + len(line), zlib.crc32(line, self._mark.crc))


def _checked(path: Path, run: str, mark: Mark) -> Mark:
    """Return the mark of what is left before ``mark``."""
    found = read_rows(path, mark.position)
    if found.end == mark:
        return mark
    for other in found.runs - {run}:
        raise InputError(
            f"{path} has rows of run {other}, and the checkpoint is of run {run}; put back the files of one run, "
            "or start anew"
        )
    if found.damaged:
        named = ", ".join(map(str, found.damaged[:_NAMED])) + (", …" if len(found.damaged) > _NAMED else "")
        LOG.warning("%s is damaged in line %s; the other rows are used", path, named)
    if found.end.position < mark.position:
        LOG.warning("%s has %d bytes, and had %d when the checkpoint was written; the rows that are left are used",
                    path, found.end.position, mark.position)  # fmt: skip
    elif not found.damaged:
        LOG.warning("%s has other rows than when the checkpoint was written; they are used", path)
    return found.end


def _lines(path: Path, position: int | None) -> Iterator[bytes]:
    """Yield the file's lines, the last one cut at ``position``."""
    try:
        file = patiently(lambda: path.open("rb"), path)
    except FileNotFoundError:
        return
    left = float("inf") if position is None else position
    with file:
        for line in file:
            if left <= 0:
                return
            yield line[: int(left)] if len(line) > left else line
            left -= len(line)


def read_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None: the line is not as it was written."""
    text, end = line[:-_END_BYTES], _END.fullmatch(line[-_END_BYTES:])
    if end is None or zlib.crc32(text) != int(end[1], 16):
        return None
    try:
        row = json.loads(text + b"}")
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("run"), str) else None
