"""Checkpoints, format 2: the whole state of a run as a tree, with the run's identity; the last two are kept.

checkpoint/00000120.safetensors   the arrays of the state
checkpoint/00000120.json          everything else, and the SHA-256 of both; its rename is what commits
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from perennial.common.command.errors import InputError, RunError
from perennial.server.run.files import listed, patiently, remove_partials, replace_file
from perennial.server.run.metrics import Mark
from perennial.server.run.tree import DamagedError, FormatError, Tree, read, write

LOG = logging.getLogger("perennial")
_KEPT = 2
_NAME = re.compile(r"([0-9]{8,})\.(json|safetensors)")


@dataclass(frozen=True)
class RunCheckpoint:
    """A run after a round. run: its identity. metrics: where each of its metrics files ends. tree: its state."""

    run: str
    server_round: int
    tree: Tree
    metrics: tuple[Mark, ...] = ()


@contextmanager
def usable_state(where: str) -> Iterator[None]:
    """Put a saved state to use; a RunError if it is whole and yet no state of such a run."""
    try:
        yield
    except (InputError, RunError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        reason = f"{type(error).__name__}: {str(error)[:160]}"
        raise RunError(f"the state in {where} cannot be used ({reason}); start anew, into another folder") from error


def new_identity() -> str:
    """Return what tells a run from all others, made once when it starts."""
    return uuid4().hex


class Checkpoints:
    """The checkpoints of one folder, for the one process that may write there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Rounds whose checkpoints were read or written here; any other may be damaged, and must not be the one kept.
        self._whole: list[int] = []

    def latest(self, run: str | None = None) -> RunCheckpoint | None:
        """Return the newest checkpoint that is whole, with a warning for each newer one; None if there is none.

        run: the identity that all must have; None: any, as long as it is one. An InputError for another identity and
        for another format; a RunError if none is whole.
        """
        found: dict[Path, RunCheckpoint] = {}
        paths = [path for path in listed(self._folder, "*.json") if _NAME.fullmatch(path.name)]
        for path in sorted(paths, key=_round, reverse=True):
            try:
                found[path] = load_checkpoint(path)
            except DamagedError as error:
                # What is older than the one that is used is not needed.
                if not found:
                    LOG.warning("checkpoint %s is damaged (%s) and is not used", path, error)
        if not found:
            if paths:
                raise RunError(f"no checkpoint in {self._folder} is whole; start anew, into another folder")
            return None
        newest = next(iter(found.values()))
        for path, one in found.items():
            if one.run != (run or newest.run):
                raise InputError(
                    f"{path} is a checkpoint of run {one.run}, not of run {run or newest.run}; move it elsewhere"
                )
        self._whole = [newest.server_round]
        return newest

    def save(self, checkpoint: RunCheckpoint) -> None:
        """Write the checkpoint of its round, and drop all but the one before it that is known to be whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        metrics = [[mark.position, mark.crc] for mark in checkpoint.metrics]
        head = {"run": checkpoint.run, "server-round": checkpoint.server_round, "metrics": metrics}
        text, blob = write({**head, "state": checkpoint.tree})
        name = f"{checkpoint.server_round:08d}"
        replace_file(self._folder / f"{name}.safetensors", blob)
        replace_file(self._folder / f"{name}.json", text.encode())
        earlier = [one for one in self._whole if one < checkpoint.server_round]
        self._whole = [*earlier, checkpoint.server_round][-_KEPT:]
        self._clean()

    def _clean(self) -> None:
        """Drop the rest, later rounds too: they are damaged, or this one would not be run again."""
        remove_partials(self._folder)
        # Names in order: a .json goes before its .safetensors, so that a kill leaves no checkpoint without arrays.
        for path in listed(self._folder):
            if _NAME.fullmatch(path.name) and _round(path) not in self._whole:
                path.unlink()


def load_checkpoint(path: Path) -> RunCheckpoint:
    """Return the checkpoint whose .json is ``path``; DamagedError for anything that is not as it was written.

    An older or newer format is an InputError.
    """
    try:
        content = read(_bytes(path), _bytes(path.with_suffix(".safetensors")))
    except FormatError as error:
        raise InputError(
            f"checkpoint {path}: {error}; go on with the version of Perennial that wrote it, or start anew, "
            "into another folder"
        ) from error
    checkpoint = _checkpoint(content)
    if checkpoint.server_round != _round(path):
        raise DamagedError(f"it is of round {checkpoint.server_round}")
    return checkpoint


def _checkpoint(content: Any) -> RunCheckpoint:
    try:
        run, server_round = content["run"], content["server-round"]
        marks = tuple(Mark(position, crc) for position, crc in content["metrics"])
        counts = [server_round, *(number for mark in marks for number in (mark.position, mark.crc))]
        if type(run) is not str or not run or any(type(one) is not int or not 0 <= one < 2**63 for one in counts):
            raise DamagedError("it does not hold a run, a round and marks")
        return RunCheckpoint(run, server_round, content["state"], marks)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def _bytes(path: Path) -> bytes:
    try:
        with patiently(lambda: path.open("rb"), path) as file:
            return file.read()
    except OSError as error:
        # A file that may not be read, say, is no damage: the checkpoint would be lost by the next one.
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        raise DamagedError(f"{path.name} cannot be read: {error.strerror}") from error


def _round(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
