"""Publishing predictors while they ripen: each version is written aside and renamed, and the last few are kept."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Slot
from perennial.common.data.examples import Signature
from perennial.common.data.manifest import written_signature
from perennial.server.predict.versions import (
    FINAL,
    FORMAT,
    MANIFEST,
    VERSIONS,
    check,
    file_of,
    numbers,
    path_of,
    read_file,
    read_manifest,
    sealed,
)
from perennial.server.run.files import aside, listed, patiently, remove_partials, replace_file, sync_folder, write_new
from perennial.server.run.tree import DamagedError, keeps

KEPT = 5
# Of a run that may go on for ever, whose devices fetch what is published.
SECONDS_BETWEEN_VERSIONS = 120.0
_PACKAGES = {"perennial": "perennial-fl", "flwr": "flwr", "numpy": "numpy", "torch": "torch"}


@dataclass(frozen=True)
class ModelSpec:
    """How the network is built that the arrays belong to, and of what examples it takes.

    name: ``cnn``, …, package.module:factory, or ``auto`` if the task brings its network. signature: None: examples have
    one input of ``shape``, uint8 or float32, and a label in [0, classes).
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    task: str = "classification"
    signature: Signature | None = None

    @classmethod
    def of(cls, task: str, model: str, signature: Signature) -> ModelSpec:
        """Return the model of a run whose data have ``signature``."""
        return cls(model, signature.x[0].shape, signature.classes, task, signature)

    def written(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        said = {"name": self.name, "shape": list(self.shape), "classes": self.classes}
        if self.signature is None:
            assert self.task == "classification", "another task needs a signature"
            return said
        return {**said, "task": self.task, "told": self.signature.told, **written_signature(self.signature)}


@dataclass(frozen=True)
class Publication:
    """What a version publishes: each block's predictor, None while it is not trained, and where it comes from.

    run: the run's identity. slot: the last round that is in it. scores: of each block, by what ``score`` names; None
    where it was not measured. schedule: what turns a time into a block (``clock`` and ``timezone``), or how rounds are
    counted. data: a fingerprint of what it was trained on. config: all settings; their hash is published.
    """

    run: str
    slot: Slot
    strategy: str
    blocks: tuple[str, ...]
    predictors: tuple[Mapping[str, NDArray[Any]] | None, ...]
    folded: tuple[int, ...]
    schedule: Mapping[str, Any]
    config: Mapping[str, Any]
    scores: tuple[float | None, ...] = ()
    score: str = "accuracy"
    model: ModelSpec | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        count = len(self.blocks)
        assert {len(self.predictors), len(self.folded), len(self.scores) or count} == {count}, "one for each block"
        assert [arrays is not None for arrays in self.predictors] == [folds > 0 for folds in self.folded]


def publish(folder: Path, publication: Publication, *, kept: int = KEPT, durable: bool = True) -> int:
    """Write the next version into a run's folder and return its number; for the one process that holds the folder.

    A kill at any instant, or a disk that is full, leaves the versions that were there. durable: a power cut does too;
    without it what the cut leaves of the newest versions may be damaged, which readers see.
    """
    versions = folder / VERSIONS
    versions.mkdir(parents=True, exist_ok=True)
    remove_partials(versions)
    before = _newest_manifest(folder)
    number: int = max([*numbers(folder), before.get("version", 0)]) + 1
    files = {
        file_of(block): model_bytes(arrays, f"block {publication.blocks[block]}")
        for block, arrays in enumerate(publication.predictors)
        if arrays is not None
    }
    manifest = _manifest(publication, number, before)
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    _place(path_of(folder, number), {**files, MANIFEST: sealed(manifest)}, durable=durable)
    for old in numbers(folder)[:-kept]:
        # Renamed first: nobody must find half of a version, also while it goes.
        removed = aside(path_of(folder, old))
        path_of(folder, old).rename(removed)
        patiently(partial(shutil.rmtree, removed), removed)
    return number


def settle(folder: Path) -> None:
    """Make ``predictors/`` the newest version, at the end of a run; its manifest comes last and says that it ended."""
    newest = path_of(folder, numbers(folder)[-1])
    manifest = check(newest)
    final = folder / FINAL
    final.mkdir(exist_ok=True)
    remove_partials(final)
    (final / MANIFEST).unlink(missing_ok=True)
    for name in manifest["sha256"]:
        replace_file(final / name, read_file(newest, manifest, name))
    for path in listed(final, "block-*.safetensors"):
        if path.name not in manifest["sha256"]:
            path.unlink()
    replace_file(final / MANIFEST, sealed(manifest))


def _place(target: Path, files: Mapping[str, bytes], *, durable: bool) -> None:
    """Write a folder of files beside ``target``, and give it its name once all of it is there."""
    partial = aside(target)
    try:
        partial.mkdir()
        for name, content in files.items():
            write_new(partial / name, content, durable=durable)
        if durable:
            sync_folder(partial)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if durable:
        sync_folder(target.parent)


def _manifest(publication: Publication, number: int, before: Mapping[str, Any]) -> dict[str, Any]:
    slot, now = publication.slot, datetime.now(UTC).isoformat(timespec="seconds")
    measured = [score if score is not None and math.isfinite(score) else None for score in publication.scores]
    config = json.dumps(publication.config, sort_keys=True, default=str).encode()
    return {
        "format": FORMAT,
        "run": publication.run,
        "version": number,
        "published": now,
        "slot": {
            "server-round": slot.server_round,
            "cycle": slot.cycle,
            "block": slot.block,
            "round-in-block": slot.round_in_block,
        },
        "strategy": publication.strategy,
        "blocks": list(publication.blocks),
        "folded": list(publication.folded),
        "trained": _trained(publication, before, now),
        "score": publication.score,
        "scores": measured or [None] * len(publication.blocks),
        "schedule": dict(publication.schedule),
        "model": publication.model.written() if publication.model else None,
        "data": publication.data,
        "config-sha256": hashlib.sha256(config).hexdigest(),
        "software": _software(),
    }


def _trained(publication: Publication, before: Mapping[str, Any], now: str) -> list[str | None]:
    """Return when each block was last seen to have folded something; None: it has not yet."""
    same_run = before.get("run") == publication.run and before.get("blocks") == list(publication.blocks)
    count = len(publication.blocks)
    folded, trained = (before["folded"], before["trained"]) if same_run else ([0] * count, [None] * count)
    return [
        None if not folds else trained[block] if folds == folded[block] else now
        for block, folds in enumerate(publication.folded)
    ]


def _newest_manifest(folder: Path) -> dict[str, Any]:
    """Return what the newest version says, or the final one; empty if there is none that can be read."""
    for version_folder in [*(path_of(folder, number) for number in numbers(folder)[-1:]), folder / FINAL]:
        with suppress(DamagedError, InputError):
            return read_manifest(version_folder)
    return {}


def model_bytes(arrays: Mapping[str, NDArray[Any]], what: str) -> bytes:
    """Return the arrays as a safetensors file; an InputError, which says ``what`` they are, if it cannot have them."""
    for name, array in arrays.items():
        if not keeps(array.dtype):
            raise InputError(f"{what}: {name} is {array.dtype}, which safetensors cannot keep for NumPy")
    # safetensors takes the memory as it lies.
    return save({name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in arrays.items()})


@cache
def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name, package in _PACKAGES.items():
        with suppress(PackageNotFoundError):
            found[name] = version(package)
    return found
