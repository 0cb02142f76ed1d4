"""Published versions on disk: which there are, what each says of itself, and whether it is as it was written.

FOLDER/versions/7/block-0.safetensors, …, manifest.json     a version: complete when it has its number, never changed
FOLDER/predictors/                                          the newest one when the run has ended
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perennial.common.command.errors import InputError, shown
from perennial.common.wire.offer import checksum
from perennial.server.run.files import patiently
from perennial.server.run.tree import DamagedError

FORMAT = 2
MANIFEST = "manifest.json"
VERSIONS = "versions"
FINAL = "predictors"


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the versions that ``folder`` has, the newest last."""
    try:
        names = patiently(lambda: os.listdir(folder / VERSIONS), folder / VERSIONS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # What is being written or removed has another name.
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def path_of(folder: Path, number: int) -> Path:
    return folder / VERSIONS / str(number)


def file_of(block: int) -> str:
    return f"block-{block}.safetensors"


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return the manifest as its file has it, with a checksum of itself."""
    # As it will be read: JSON has no tuples and no numbers as keys.
    plain = json.loads(json.dumps(manifest))
    return json.dumps({**plain, "checksum": checksum(plain)}, indent=2).encode() + b"\n"


def read_manifest(version: Path) -> dict[str, Any]:
    """Return what a version's folder says of itself, once its checksum fits; DamagedError if it does not.

    Another format is an InputError.
    """
    path = version / MANIFEST
    content = _bytes(path)
    try:
        manifest = dict(json.loads(content))
        said, found = manifest.pop("checksum", None), manifest["format"]
        # Format 1 had no checksum.
        if said is not None and checksum(manifest) != said:
            raise DamagedError(f"{path}: its checksum differs")
    except DamagedError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is no manifest: {type(error).__name__}: {str(error)[:160]}") from error
    if found != FORMAT:
        raise InputError(
            f"{path}: format must be {FORMAT}, got {shown(found)}; publish it again with this version of Perennial"
        )
    if said is None:
        raise DamagedError(f"{path}: it has no checksum")
    return manifest


def read_file(version: Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """Return the content of one of the version's files, once its checksum fits; DamagedError if it does not."""
    content = _bytes(version / name)
    if hashlib.sha256(content).hexdigest() != manifest["sha256"].get(name):
        raise DamagedError(f"{version / name}: its checksum is not the manifest's")
    return content


def check(version: Path) -> dict[str, Any]:
    """Return the manifest of a version that is whole; DamagedError names the first file that is not."""
    manifest = read_manifest(version)
    for name in manifest["sha256"]:
        read_file(version, manifest, name)
    return manifest


def check_final(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's final predictors; DamagedError names the first file that is not whole.

    The newest version must be whole too: it is what readers take first.
    """
    for number in numbers(folder)[-1:]:
        check(path_of(folder, number))
    return check(folder / FINAL)


def _bytes(path: Path) -> bytes:
    try:
        return patiently(path.read_bytes, path)
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror or error}"
        # A file that may not be read, say, is no damage, and an older version no remedy.
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
            raise DamagedError(reason) from error
        raise InputError(f"{reason}; see to it that it can be") from error
