"""Runs that go on, read again and again: of a metrics.jsonl only what is new is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from perennial.common.command.errors import InputError
from perennial.server.report.columns import RunResult
from perennial.server.report.reading import read_with
from perennial.server.run.metrics import read_row

# So much of a file is read at a time, so that a long one does not stand in memory twice.
_PIECE = 2**22
# The end of what was read, which is looked at again: no two lines have the same.
_TAIL = 256


class FollowedRun:
    """A run's folder. passed: the identity of a run that is there already, and will make room for the one followed."""

    def __init__(self, folder: Path, name: str | None = None, passed: str | None = None) -> None:
        self._folder, self._name, self._passed = folder, name, passed
        self._rows: list[dict[str, Any]] = []
        self._position, self._rest = 0, b""
        self._tail = b""

    def read(self) -> RunResult | None:
        """Return the run as it is; None: it has not begun."""
        with suppress(FileNotFoundError, NotADirectoryError):
            self._read_rows(self._folder / "metrics.jsonl")
            rows = self._rows
            if rows and self._passed is not None and rows[0]["run"] == self._passed:
                return None
            config = yaml.safe_load((self._folder / "config.yaml").read_bytes())
            if not isinstance(config, dict) or not rows:
                return None
            with suppress(InputError):
                return read_with(self._folder, config, rows, self._name)
        return None

    def _read_rows(self, path: Path) -> None:
        with path.open("rb") as file:
            if not self._goes_on(file):
                # A run that begins anew, or goes on from an earlier round than its file had.
                self._rows, self._position, self._rest, self._tail = [], 0, b"", b""
            file.seek(self._position)
            while piece := file.read(_PIECE):
                self._position += len(piece)
                self._tail = (self._tail + piece)[-_TAIL:]
                *lines, self._rest = (self._rest + piece).split(b"\n")
                found = (read_row(line + b"\n") for line in lines)
                self._rows += [row for row in found if row is not None]

    def _goes_on(self, file: BinaryIO) -> bool:
        """Return whether what was read of the file still stands in it."""
        file.seek(self._position - len(self._tail))
        return file.read(len(self._tail)) == self._tail


def identity_of(folder: Path) -> str | None:
    """Return which run the metrics in a folder are of; None: there are none."""
    with suppress(OSError), (folder / "metrics.jsonl").open("rb") as file:
        row = read_row(file.readline())
        return None if row is None else str(row["run"])
    return None


def stamp_of(folders: Sequence[Path]) -> Mapping[str, tuple[int, int]]:
    """Return what changes when there is something new in the folders; it costs next to nothing."""
    found = {}
    for folder in folders:
        for path in (folder / "metrics.jsonl", folder / "versions", folder / "predictors" / "manifest.json"):
            with suppress(OSError):
                state = path.stat()
                found[str(path)] = (state.st_mtime_ns, state.st_size)
    return found
