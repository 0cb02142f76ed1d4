"""The versions that are served: the newest whole one, taken up while requests are answered, and older ones on request.

A request is answered by one edition from its first byte to its last; a newer one takes its place between two requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from perennial.common.command.errors import InputError
from perennial.server.link.fleet_keys import Refusal
from perennial.server.predict.loading import PublishedVersion, place_of, places_of
from perennial.server.predict.predictor_network import PredictorNetwork, output_names
from perennial.server.predict.serving.tensors import DATATYPES
from perennial.server.predict.versions import MANIFEST, numbers
from perennial.server.run.tree import DamagedError

LOG = logging.getLogger("perennial")
# Older versions that are kept in memory because somebody asked for them.
_KEPT = 4
# Between two looks at the folder.
_SECONDS = 0.5

# What tells a version's folder from another one of the same number, of a run that began anew.
Stamp = tuple[str, int, int]


@dataclass(frozen=True)
class Edition:
    """A version in memory, all of it: one network for each block that is trained."""

    version: PublishedVersion
    networks: tuple[PredictorNetwork | None, ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def load(cls, place: Path) -> Edition:
        """Load a version, once its checksums fit, and try each network."""
        version = PublishedVersion.at(place)
        networks = tuple(
            PredictorNetwork.of(version.predictor(block)) if there else None
            for block, there in enumerate(version.trained)
        )
        # Known from the start, so that it is no surprise in a request.
        _ = version.clock
        tried = [_tried(network) for network in networks if network]
        return cls(version, networks, tried[0] if tried else ())

    def pick(self, at: datetime | None, block: str | int | None) -> PredictorNetwork:
        """Return the network of a block, or of a time. Raises ``Refusal``."""
        try:
            network = self.networks[self.version.number_of(at, block)]
        except InputError as error:
            raise Refusal(400, str(error)) from error
        assert network is not None, "number_of names blocks that are trained"
        return network

    @property
    def any(self) -> PredictorNetwork | None:
        return next((network for network in self.networks if network), None)


class Shelf:
    """The editions of a run's folder. For one event loop; loading is done in threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.current: Edition | None = None
        self.taken_up = self.refused = 0
        self._stamp: Stamp | None = None
        self._bad: set[Stamp] = set()
        self._older: OrderedDict[Stamp, Edition] = OrderedDict()
        self._loading = asyncio.Lock()

    def look(self) -> None:
        """Take up the newest version that is whole, if it is another than the current one."""
        for place in places_of(self._folder):
            stamp = _stamp(place)
            if stamp is None or stamp in self._bad:
                continue
            if stamp == self._stamp:
                return
            try:
                edition = Edition.load(place)
            except (DamagedError, InputError) as error:
                if place.exists():
                    self._refuse(stamp, error)
                continue
            # The networks of the current one live on in the requests that have them.
            self.current, self._stamp = edition, stamp
            self.taken_up += 1
            return

    async def watch(self, seconds: float = _SECONDS) -> None:
        """Take up new versions for ever."""
        while True:
            try:
                await asyncio.to_thread(self.look)
            except Exception:
                LOG.exception("%s cannot be looked at; the version in memory goes on being served", self._folder)
            await asyncio.sleep(seconds)

    async def edition(self, version: str | None) -> Edition:
        """Return the current edition, or the one of a version. Raises ``Refusal``."""
        current = self.current
        if current is not None and version in (None, str(current.version.number)):
            return current
        if version is None:
            raise Refusal(400, "no version is published yet; ask again later")
        if not (version.isascii() and version.isdigit() and len(version) < 16):
            raise Refusal(404, f"there is no version {version[:40]!r}; the versions are: {', '.join(self.versions())}")
        async with self._loading:
            return await asyncio.to_thread(self._of_version, int(version))

    def versions(self) -> list[str]:
        """Return the numbers of the versions that can be asked for."""
        there = set(numbers(self._folder))
        if self.current is not None:
            there.add(self.current.version.number)
        return [str(number) for number in sorted(there)]

    def _of_version(self, number: int) -> Edition:
        try:
            place = place_of(self._folder, number)
            stamp = _stamp(place)
            if stamp is not None and stamp in self._older:
                self._older.move_to_end(stamp)
                return self._older[stamp]
            edition = Edition.load(place)
        except (DamagedError, InputError) as error:
            LOG.warning("version %d was asked for: %s", number, error)
            there = ", ".join(self.versions()) or "none"
            raise Refusal(404, f"version {number} cannot be had; the versions are: {there}") from error
        if stamp is not None:
            self._older[stamp] = edition
            if len(self._older) > _KEPT:
                self._older.popitem(last=False)
        return edition

    def _refuse(self, stamp: Stamp, error: Exception) -> None:
        self._bad.add(stamp)
        self.refused += 1
        serves = f"version {self.current.version.number} goes on being served" if self.current else "none is served yet"
        LOG.warning("%s; %s", error, serves)


def _stamp(place: Path) -> Stamp | None:
    try:
        found = (place / MANIFEST).stat()
    except OSError:
        return None
    return str(place), found.st_ino, found.st_mtime_ns


def _tried(network: PredictorNetwork) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return name, datatype and shape of each output, by trying the network, which so is warm."""
    x, _ = network.signature.zeros(2)
    try:
        found = network.outputs(x)
    except InputError:
        raise
    except Exception as error:  # someone else's network
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the network of block {network.block} does not take its examples: {reason}") from error
    for one in found:
        if one.dtype.name not in DATATYPES or one.shape[:1] != (2,):
            raise InputError(
                f"the network of block {network.block} must give numbers for each example, for 2 examples shape "
                f"(2, …), got {one.dtype} {one.shape}"
            )
    named = zip(output_names(len(found)), found, strict=True)
    return tuple((name, DATATYPES[one.dtype.name], one.shape[1:]) for name, one in named)
