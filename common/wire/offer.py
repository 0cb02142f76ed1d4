"""What a device fetches of a run's predictors: the manifest of the newest version, and the files that it names.

    POST OFFERED/KNOWN   the newest manifest; 204: it is the one whose SHA-256 is KNOWN (NONE: the device has none), or
                         nothing is published yet
    POST OFFERED/N/NAME  a file of version N; 204: there is a newer version by now

Both carry the token of a session, as all requests of a node do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perennial.common.wire.link import GREET

OFFERED = f"{GREET}/predictors/"
NONE = "none"
_FILE = re.compile(r"block-[0-9]{1,6}\.safetensors")
_MOST_FILES = 10_000


@dataclass(frozen=True)
class Offered:
    """A manifest whose checksum fits. content: as its file has it. files: the SHA-256 of each."""

    content: bytes
    version: int
    files: Mapping[str, str]

    @classmethod
    def read(cls, content: bytes) -> Offered:
        """Return what a manifest offers; a ValueError if it is none."""
        try:
            manifest = dict(json.loads(content))
            said = manifest.pop("checksum")
            version, files = manifest["version"], dict(manifest["sha256"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"what came is no manifest: {type(error).__name__}: {error}") from error
        if said != checksum(manifest):
            raise ValueError("what came is no whole manifest: its checksum differs")
        if type(version) is not int or version < 1 or len(files) > _MOST_FILES:
            raise ValueError("what came is no manifest of a version")
        for name, digest in files.items():
            # Names become paths.
            if not _FILE.fullmatch(name) or not isinstance(digest, str):
                raise ValueError("what came names files that are no predictors")
        return cls(content, version, files)


def checksum(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of a manifest that has none yet."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def path_to(version: int, name: str) -> str:
    """Return the route of a version's file."""
    return f"{OFFERED}{version}/{name}"
