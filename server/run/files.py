"""Writing files so that a kill at any instant leaves the old content or the new, never half of it."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

LOG = logging.getLogger("perennial")
# Connections that hold the last open files come and go; a run must not end by them.
PATIENCE_SECONDS = 60.0
_Result = TypeVar("_Result")


def replace_file(path: Path, content: bytes) -> None:
    """Write beside, sync, rename, sync the folder; what fails leaves the old content and nothing beside it."""
    partial = aside(path)
    try:
        write_new(partial, content)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def write_new(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file that must not be there yet, and have it on disk if it is to be durable."""
    with patiently(lambda: path.open("xb"), path) as file:
        try:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        except OSError as error:
            # A full disk names no file by itself.
            error.filename = error.filename or str(path)
            raise


def aside(path: Path) -> Path:
    """Return a name beside ``path`` that no other process and no other call takes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{token_hex(4)}.partial")


def remove_partials(folder: Path) -> None:
    """Remove what killed processes left half-written in ``folder``; for the one process that may write there."""
    for path in listed(folder, ".*.partial"):
        if path.is_dir() and not path.is_symlink():
            patiently(partial(shutil.rmtree, path), path)
        else:
            path.unlink()


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what a folder has, sorted by name: to look into it takes an open file too."""
    return sorted(patiently(lambda: list(folder.glob(pattern)), folder))


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = patiently(lambda: os.open(folder, os.O_RDONLY), folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def patiently(open_it: Callable[[], _Result], path: Path) -> _Result:
    """Return what ``open_it`` opens; while too many files are open it is tried again, which is said once."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    said = False
    while True:
        try:
            return open_it()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > deadline:
                raise
            if not said:
                LOG.warning("%s cannot be opened: too many files are open; it is tried again", path)
                said = True
            time.sleep(0.05)
