"""A temporary folder that ends with its owner: what a killed run could not remove, the next start removes."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOG = logging.getLogger("perennial")
PREFIX = "perennial-"
_LOCK = "owner.lock"
# Ray's sockets have names of up to 107 bytes: the folder's, 64 of Ray's own, and before it the parent's with our 19.
_LONGEST_PARENT = 107 - 64 - len(f"/{PREFIX}12345678")
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder, removed on the way out; folders whose owners were killed are removed first."""
    parent = _parent()
    if str(parent) != tempfile.gettempdir():
        LOG.info(
            "the temporary folder %s has too long a name for Ray's sockets; %s is used", tempfile.gettempdir(), parent
        )
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    # The kernel drops a lock with its process, however that ends; a process id could be another process by now.
    lock = os.open(folder / f"{_LOCK}.partial", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Renamed when it is held: nobody ever sees the lock of a living owner free.
    (folder / f"{_LOCK}.partial").rename(folder / _LOCK)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_abandoned() -> None:
    """Remove the folders of owners that are no more; those of other users are theirs to remove."""
    for path in _parent().glob(f"{PREFIX}*/{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def _parent() -> Path:
    """Return the temporary folder, or one with a shorter name if its own leaves no room for Ray's sockets."""
    usual = tempfile.gettempdir()
    for place in (usual, *_SHORT):
        if len(os.fsencode(place)) <= _LONGEST_PARENT and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    return Path(usual)
