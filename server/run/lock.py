"""One process writes to a folder at a time: it holds FOLDER/.lock, which says who it is and since when."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from perennial.common.command.errors import InputError

LOG = logging.getLogger("perennial")
NAME = ".lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_held: set[int] = set()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold ``folder``, which is made if it is missing; an InputError says who holds it already.

    The kernel lets go of a lock when its process ends, however it ends: what a kill leaves is no obstacle. The file
    itself stays, since whoever has just opened it would else lock a file that nobody finds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = _taken(folder)
    _held.add(descriptor)
    try:
        about = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(" ", "seconds")}
        os.truncate(descriptor, os.pwrite(descriptor, json.dumps(about).encode(), 0))
        yield
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


def _taken(folder: Path) -> int:
    """Return the descriptor of the lock file, locked."""
    path = folder / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, folder)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(f"{folder} is held by {_holder(descriptor)}; wait for it, or name another folder") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _say_that_nothing_locks(folder)


def _holder(descriptor: int) -> str:
    try:
        about = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {int(about['pid'])} on {str(about['host'])[:80]} since {str(about['since'])[:40]}"
    except (ValueError, KeyError, TypeError):
        # It has the lock, and has not written yet who it is.
        return "another process"


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether the file is still there by its name: somebody may have removed it before it was locked."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@cache
def _say_that_nothing_locks(folder: Path) -> None:
    LOG.warning("%s is on a file system without locks: see to it that no other process writes there", folder)


def _let_go() -> None:
    # A lock belongs to all who share the descriptor: a child that outlives its parent would hold the folder.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
