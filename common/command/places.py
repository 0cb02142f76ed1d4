"""Folders and files that a user names: found good at the start, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from perennial.common.command.errors import InputError


def folder(path: Path) -> Path:
    """Return the folder, made where it is missing; one that takes no files is refused before the work, not after it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Permissions tell root too little: it may write to /proc by them, and yet cannot.
        TemporaryFile(dir=path).close()
    except FileExistsError as error:
        raise InputError(f"{path} is a file; name another folder") from error
    except OSError as error:
        raise InputError(f"{path} cannot be written to: {error.strerror or error}; name another folder") from error
    return path


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Let what fails in here name ``path``, unless it names a file itself: a full disk is somebody's folder."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def page(path: Path) -> str:
    """Return the text of a page that is going to be filled: it must be there, and take what is written to it."""
    try:
        with path.open("r+", encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{path} cannot be read and written: {reason}; "
            "name a page that is there, with markers as docs/results.md has them"
        ) from error
