"""A device's folder of predictors: the newest version of the run, fetched over the link, whole or not there.

DIR/versions/N/ has the files that a run's folder has, so that ``perennial.load_predictor(DIR)`` reads both. The version
before it stays too: whoever reads it just now is not disturbed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from perennial.common.wire.offer import NONE, OFFERED, Offered, path_to

MANIFEST = "manifest.json"
# Asks the server for a path; None: there is nothing new.
Fetch = Callable[[str], bytes | None]
# Between two questions, and how often a version may be overtaken by the next one while it is fetched.
_SECONDS, _ATTEMPTS = 30.0, 3


class Overtaken(Exception):
    """The version that is being fetched is not the newest any more."""


class KeptPredictors:
    """Keeps the newest version in ``folder``. For one thread, and one process."""

    def __init__(self, folder: Path, say: Callable[[str], None], seconds: float = _SECONDS) -> None:
        self._versions = folder / "versions"
        self._say, self._seconds = say, seconds
        self._due, self._said = 0.0, ""
        self._versions.mkdir(parents=True, exist_ok=True)
        # What an earlier process left half-written.
        for partial in self._versions.glob(".*.partial"):
            shutil.rmtree(partial, ignore_errors=True)

    def renew(self, fetch: Fetch) -> None:
        """Fetch the newest version, if it is time to ask and there is another; what goes wrong is said and tried again.

        Errors of ``fetch`` pass through.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._seconds
        try:
            number = self._fetch_newest(fetch)
        except (OSError, ValueError) as error:
            number, text = None, f"predictors: {error}; the version that is here goes on being used"
            if text != self._said:
                self._say(text)
            self._said = text
        if number is not None:
            self._said = ""
            self._say(f"predictors: version {number} is here")

    def _fetch_newest(self, fetch: Fetch) -> int | None:
        for _ in range(_ATTEMPTS):
            content = fetch(OFFERED + self._known())
            if content is None:
                return None
            offered = Offered.read(content)
            try:
                self._take(offered, fetch)
            except Overtaken:
                continue
            return offered.version
        return None

    def _take(self, offered: Offered, fetch: Fetch) -> None:
        """Write a version beside the others and give it its name once all of it is there, checked."""
        partial = self._aside(offered.version)
        try:
            partial.mkdir()
            for name, digest in offered.files.items():
                content = self._here(name, digest) or fetch(path_to(offered.version, name))
                if content is None:
                    raise Overtaken
                if hashlib.sha256(content).hexdigest() != digest:
                    raise ValueError(f"{name} of version {offered.version} is not what its manifest says")
                _write(partial / name, content)
            _write(partial / MANIFEST, offered.content)
            self._place(partial, offered.version)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def _place(self, partial: Path, number: int) -> None:
        before = self._numbers()
        target = self._versions / str(number)
        # Of a run that began anew: its versions are numbered as those of the one before.
        for stale in [one for one in before if one >= number]:
            self._remove(stale)
        partial.rename(target)
        _sync(self._versions)
        for old in [one for one in before if one < number][:-1]:
            self._remove(old)

    def _remove(self, number: int) -> None:
        # Renamed first: nobody must find half of a version, also while it goes.
        removed = self._aside(number)
        (self._versions / str(number)).rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def _known(self) -> str:
        """Return the SHA-256 of the newest manifest, if its version is whole."""
        for number in reversed(self._numbers()):
            with suppress(OSError, ValueError):
                content = (self._versions / str(number) / MANIFEST).read_bytes()
                offered = Offered.read(content)
                if all(_digest(self._versions / str(number) / name) == sha for name, sha in offered.files.items()):
                    return hashlib.sha256(content).hexdigest()
            return NONE
        return NONE

    def _here(self, name: str, digest: str) -> bytes | None:
        """Return a file that an earlier version has already."""
        for number in reversed(self._numbers()):
            path = self._versions / str(number) / name
            with suppress(OSError):
                content = path.read_bytes()
                if hashlib.sha256(content).hexdigest() == digest:
                    return content
        return None

    def _numbers(self) -> list[int]:
        names = [path.name for path in self._versions.iterdir()]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _aside(self, number: int) -> Path:
        return self._versions / f".{number}.{os.getpid()}-{token_hex(4)}.partial"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
