"""The newest version as devices fetch it: in memory once, whoever asks, and looked for again after a moment."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perennial.common.command.errors import InputError
from perennial.server.predict.versions import MANIFEST, numbers, path_of, read_file, read_manifest
from perennial.server.run.tree import DamagedError

LOG = logging.getLogger("perennial")
# Between two looks at the folder.
_SECONDS = 1.0


@dataclass(frozen=True)
class _Held:
    number: int
    stamp: int
    manifest: bytes
    digest: str
    files: Mapping[str, bytes] = field(repr=False)


class PredictorOffer:
    """Offers what a run's folder publishes; safe to ask from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._looked = -_SECONDS

    def newest(self, known: str) -> bytes | None:
        """Return the manifest of the newest whole version; None if it is the known one, or if there is none."""
        with self._lock:
            if time.monotonic() - self._looked > _SECONDS:
                self._look()
                self._looked = time.monotonic()
            held = self._held
        return None if held is None or held.digest == known else held.manifest

    def file(self, version: int, name: str) -> bytes | None:
        """Return a file of the version that is offered; None if it is another by now."""
        held = self._held
        return held.files.get(name) if held and held.number == version else None

    def _look(self) -> None:
        for number in reversed(numbers(self._folder)):
            place = path_of(self._folder, number)
            try:
                stamp = (place / MANIFEST).stat().st_mtime_ns
                if self._held and (self._held.number, self._held.stamp) == (number, stamp):
                    return
                manifest = read_manifest(place)
                files = {name: read_file(place, manifest, name) for name in manifest["sha256"]}
                content = (place / MANIFEST).read_bytes()
            except FileNotFoundError:
                continue
            except (DamagedError, InputError, KeyError, TypeError, OSError) as error:
                if place.exists():
                    LOG.warning("version %d is not offered to devices: %s", number, error)
                continue
            self._held = _Held(number, stamp, content, hashlib.sha256(content).hexdigest(), files)
            return
