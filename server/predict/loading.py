"""The predictor of this minute, or of a block: found by the clock in the manifest, checked before it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.clock import ClockSpec, utc_now
from perennial.common.cycle.own_schedule import names_a_schedule
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
        if self.manifest["model"] is None:
            raise InputError("the run names no model that could be built; use the predictor's arrays")
        try:
            from perennial.server.predict.predictor_network import PredictorNetwork
        except ImportError as error:
            raise InputError(f"a module needs torch: {error}; install perennial-fl[app], or use arrays") from error
        return PredictorNetwork.of(self).module


@dataclass(frozen=True)
class PublishedVersion:
    """A version's folder, whose manifest is as it was written. Raises DamagedError if what it says cannot be."""

    place: Path
    manifest: Mapping[str, Any]

    @classmethod
    def at(cls, place: Path) -> PublishedVersion:
        manifest = read_manifest(place)
        with _damage(place):
            return cls(place, {**manifest, "version": int(manifest["version"]), "blocks": list(manifest["blocks"])})

    @property
    def number(self) -> int:
        return int(self.manifest["version"])

    @property
    def blocks(self) -> list[str]:
        names: list[str] = self.manifest["blocks"]
        return names

    @cached_property
    def trained(self) -> tuple[bool, ...]:
        """Whether each block has a predictor."""
        with _damage(self.place):
            files = set(self.manifest["sha256"])
            return tuple(file_of(block) in files for block in range(len(self.blocks)))

    @cached_property
    def clock(self) -> ClockSpec | None:
        """What turns a time into a block; None: the run counts rounds."""
        with _damage(self.place):
            schedule = self.manifest["schedule"]
            if not schedule.get("clock") or names_a_schedule(schedule["clock"]):
                return None
            spec = ClockSpec.parse(schedule["clock"], schedule["timezone"])
            if list(spec.names) != self.blocks:
                raise DamagedError(
                    f"its clock has the blocks {', '.join(spec.names)}, its predictors {', '.join(self.blocks)}"
                )
            return spec

    def number_of(self, at: datetime | None, block: str | int | None) -> int:
        """Return the number of a block that has a predictor: the named one, or the one of the time (None: now)."""
        number = self._block_at(at) if block is None else self._block_named(block)
        if not self.trained[number]:
            trained = [name for name, there in zip(self.blocks, self.trained, strict=True) if there]
            raise InputError(
                f"block {self.blocks[number]} is not trained yet in version {self.number}; "
                f"trained are: {', '.join(trained) or 'none'}"
            )
        return number

    def predictor(self, number: int) -> Predictor:
        """Return a block's predictor, once the checksum of its file fits."""
        with _damage(self.place):
            arrays = load(read_file(self.place, self.manifest, file_of(number)))
        return Predictor(self.blocks[number], self.number, arrays, self.manifest)

    def _block_at(self, at: datetime | None) -> int:
        if self.clock is None:
            named = self.manifest["schedule"].get("clock")
            why = f"only {named} knows its blocks by the time" if named else "the run counts rounds and has no clock"
            raise InputError(f"{why}; give block, one of: {', '.join(self.blocks)}")
        return self.clock.block_at(at or utc_now())

    def _block_named(self, block: str | int) -> int:
        if isinstance(block, str) and block in self.blocks:
            return self.blocks.index(block)
        if isinstance(block, str) and block.isascii() and block.isdigit() and len(block) < 10:
            # A number as a shell gives it.
            return self._block_named(int(block))
        if type(block) is int and 0 <= block < len(self.blocks):
            return block
        raise InputError(f"there is no block {shown(block)}; the blocks are: {', '.join(self.blocks)}")


@contextmanager
def _damage(place: Path) -> Iterator[None]:
    """Tell of what nobody would have written as damage of ``place``."""
    try:
        yield
    except (InputError, DamagedError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, SafetensorError) as error:
        raise DamagedError(f"{place} is no version: {type(error).__name__}: {str(error)[:160]}") from error


def open_version(path: Path, version: int | None) -> PublishedVersion:
    """Return a version of a run's folder, or the newest whose manifest is whole; an InputError if there is none."""
    folder = run_folder(path)
    places = [place_of(folder, version)] if version is not None else places_of(folder)
    if not places:
        raise InputError(f"{folder} {why_empty(folder)}")
    damage = []
    for place in places:
        try:
            return PublishedVersion.at(place)
        except DamagedError as error:
            damage.append(str(error))
    raise InputError(f"{damage[0]}; publish it again, or fetch it again")


def load_predictor(
    path: str | PathLike[str], *, at: datetime | None = None, block: str | int | None = None, version: int | None = None
) -> Predictor:
    """Return a predictor that a run published.

    path: the folder of a run or of a device. at: a time with its zone, whose block the run's clock tells; without it,
    the present time. block: the name or the number of the block, instead of a time; needed if the run has no clock.
    version: without it, the newest one that is whole. Every problem is an InputError that says what to do, and nothing
    is loaded before its checksum is checked.

    >>> from tempfile import TemporaryDirectory
    >>> from perennial import MMPSGD, RoundSchedule, load_predictor
    >>> from perennial.example import example_arrays, example_grid
    >>> strategy = MMPSGD(schedule=RoundSchedule(blocks=["day", "night"], rounds_per_block=2))
    >>> with TemporaryDirectory() as folder:
    ...     result = strategy.start(example_grid(), example_arrays(), 4, run_dir=folder)
    ...     predictor = load_predictor(folder, block="night")
    >>> predictor.block, sorted(predictor.arrays)
    ('night', ['bias', 'weight'])
    """
    check_choice(at, block)
    folder = run_folder(Path(path))
    if version is not None:
        return _of_version(folder, version, at, block)
    while (found := _newest(folder, at, block)) is None:
        pass
    return found


def check_choice(at: object, block: object) -> None:
    """Refuse both a time and a block, and a time without a zone."""
    if at is not None and block is not None:
        raise InputError("give at or block, not both: a time says which block it is")
    if at is not None and (not isinstance(at, datetime) or at.utcoffset() is None):
        raise InputError(f"at must be a time with a zone, got {shown(at)}; as in datetime.now(UTC)")


def run_folder(path: Path) -> Path:
    """Return the path of a folder that is there."""
    if not path.is_dir():
        raise InputError(f"{path} {'is no folder' if path.exists() else 'does not exist'}; name a run's folder")
    return path


def places_of(folder: Path) -> list[Path]:
    """Return the folders of the versions that a run's folder has, the newest first."""
    places = [path_of(folder, number) for number in reversed(numbers(folder))]
    if (folder / FINAL / MANIFEST).exists():
        places.append(folder / FINAL)
    return places


def place_of(folder: Path, version: int) -> Path:
    """Return the folder of a version; an InputError names those that there are."""
    there = set(numbers(folder))
    if version in there:
        return path_of(folder, version)
    if (folder / FINAL / MANIFEST).exists():
        try:
            final = PublishedVersion.at(folder / FINAL).number
        except DamagedError as error:
            raise InputError(f"{error}; choose another version, or publish it again") from error
        if version == final:
            return folder / FINAL
        there.add(final)
    has = f"it has {', '.join(map(str, sorted(there)))}" if there else why_empty(folder)
    raise InputError(f"{folder} has no version {shown(version)}; {has}")


def why_empty(folder: Path) -> str:
    """Return why a folder has no versions, and what to do."""
    runs = sorted({path.parent.parent.name for path in folder.glob(f"*/{FINAL}/{MANIFEST}")}
                  | {path.parent.name for path in folder.glob("*/versions")})  # fmt: skip
    if runs:
        return f"is no run's folder, but holds some; name one of them: {', '.join(runs[:10])}"
    return "has no published predictors; has the run published any yet?"


def _newest(folder: Path, at: datetime | None, block: str | int | None) -> Predictor | None:
    """Return the newest predictor that is whole; None: its version was removed meanwhile, so there is a newer one."""
    if not (places := places_of(folder)):
        raise InputError(f"{folder} {why_empty(folder)}")
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
    place = place_of(folder, version)
    try:
        return _load(place, at, block)
    except DamagedError as error:
        if not place.exists():
            # Removed since, as the older ones are: the error names those that there are now.
            place_of(folder, version)
        raise InputError(f"{error}; choose another version, or publish it again") from error


def _load(place: Path, at: datetime | None, block: str | int | None) -> Predictor:
    version = PublishedVersion.at(place)
    return version.predictor(version.number_of(at, block))
