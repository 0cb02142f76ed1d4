"""The predictor of this minute, or of a block: found by the clock in the manifest, checked before it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.clock import ClockSpec, utc_now
from perennial.server.predict.versions import FINAL, MANIFEST, file_of, numbers, path_of, read_file, read_manifest
from perennial.server.run.tree import DamagedError

if TYPE_CHECKING:
    from torch import nn

LOG = logging.getLogger("perennial")


@dataclass(frozen=True)
class Predictor:
    """A block's predictor in a version. manifest: all that the version says of itself."""

    block: str
    version: int
    arrays: Mapping[str, NDArray[Any]] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def module(self) -> nn.Module:
        """Return the run's model with these arrays, ready to predict; needs torch, and a run that names a model."""
        model = self.manifest["model"]
        if model is None:
            raise InputError("the run names no model that could be built; use the predictor's arrays")
        try:
            import torch

            from perennial.common.task import models
        except ImportError as error:
            raise InputError(f"a module needs torch: {error}; install perennial-fl[app], or use arrays") from error
        network = models.build(model["name"], tuple(model["shape"]), model["classes"])
        try:
            network.load_state_dict({name: torch.tensor(array) for name, array in self.arrays.items()})
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"model {model['name']!r} is not the one that was trained: {reason}") from error
        return network.eval()


def load_predictor(
    path: str | PathLike[str], *, at: datetime | None = None, block: str | int | None = None, version: int | None = None
) -> Predictor:
    """Return a predictor that a run published.

    path: a run's folder, or a device's. at: a time with zone, which the run's clock turns into a block; default: now.
    block: the block's name or number instead; a run by rounds has no clock and needs it. version: default: the newest
    that is whole. Every problem is an InputError that says what to do; nothing is loaded before its checksum fits.

        predictor = load_predictor("runs/mine", block="night")
        predictor.arrays["fc.weight"]
    """
    if at is not None and block is not None:
        raise InputError("give at or block, not both: a time says which block it is")
    if at is not None and (not isinstance(at, datetime) or at.utcoffset() is None):
        raise InputError(f"at must be a time with a zone, got {shown(at)}; as in datetime.now(UTC)")
    folder = _folder(Path(path))
    if version is not None:
        return _of_version(folder, version, at, block)
    while (found := _newest(folder, at, block)) is None:
        pass
    return found


def _newest(folder: Path, at: datetime | None, block: str | int | None) -> Predictor | None:
    """Return the newest predictor that is whole; None: its version was removed meanwhile, so there is a newer one."""
    places = [path_of(folder, number) for number in reversed(numbers(folder))]
    if (folder / FINAL / MANIFEST).exists():
        places.append(folder / FINAL)
    if not places:
        raise InputError(f"{folder} {_why_empty(folder)}")
    damage = []
    for place in places:
        try:
            return _load(place, at, block)
        except DamagedError as error:
            if not place.exists():
                return None
            LOG.warning("%s; an older version is looked for", error)
            damage.append(str(error))
    raise InputError(f"{damage[0]}; no other version in {folder} is whole: publish it again, or fetch it again")


def _of_version(folder: Path, version: int, at: datetime | None, block: str | int | None) -> Predictor:
    there = set(numbers(folder))
    place = path_of(folder, version)
    try:
        if version not in there and (folder / FINAL / MANIFEST).exists():
            place = folder / FINAL
            there.add(read_manifest(place)["version"])
        if version in there:
            return _load(place, at, block)
    except DamagedError as error:
        if version not in there or place.exists():
            raise InputError(f"{error}; choose another version, or publish it again") from error
        there.discard(version)
    has = f"it has {', '.join(map(str, sorted(there)))}" if there else _why_empty(folder)
    raise InputError(f"{folder} has no version {shown(version)}; {has}")


def _load(place: Path, at: datetime | None, block: str | int | None) -> Predictor:
    manifest = read_manifest(place)
    try:
        names: list[str] = manifest["blocks"]
        number = _block_at(manifest, at) if block is None else _block_named(names, block)
        name = file_of(number)
        if name not in manifest["sha256"]:
            trained = [one for index, one in enumerate(names) if file_of(index) in manifest["sha256"]]
            raise InputError(
                f"block {names[number]} is not trained yet in version {manifest['version']}; "
                f"trained are: {', '.join(trained) or 'none'}"
            )
        arrays = load(read_file(place, manifest, name))
        return Predictor(names[number], manifest["version"], arrays, manifest)
    except (InputError, DamagedError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, SafetensorError) as error:
        raise DamagedError(f"{place} is no version: {type(error).__name__}: {str(error)[:160]}") from error


def _block_at(manifest: Mapping[str, Any], at: datetime | None) -> int:
    clock, names = manifest["schedule"].get("clock"), manifest["blocks"]
    if not clock:
        raise InputError(f"the run counts rounds and has no clock; give block, one of: {', '.join(names)}")
    spec = ClockSpec.parse(clock, manifest["schedule"]["timezone"])
    if list(spec.names) != names:
        raise DamagedError(f"its clock has the blocks {', '.join(spec.names)}, its predictors {', '.join(names)}")
    return spec.block_at(at or utc_now())


def _block_named(names: list[str], block: str | int) -> int:
    if isinstance(block, str) and block in names:
        return names.index(block)
    if type(block) is int and 0 <= block < len(names):
        return block
    raise InputError(f"there is no block {shown(block)}; the blocks are: {', '.join(names)}")


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise InputError(f"{path} {'is no folder' if path.exists() else 'does not exist'}; name a run's folder")
    return path


def _why_empty(folder: Path) -> str:
    runs = sorted({path.parent.parent.name for path in folder.glob(f"*/{FINAL}/{MANIFEST}")}
                  | {path.parent.name for path in folder.glob("*/versions")})  # fmt: skip
    if runs:
        return f"is no run's folder, but holds some; name one of them: {', '.join(runs[:10])}"
    return "has no published predictors; has the run published any yet?"
