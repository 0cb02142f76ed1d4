"""Models that wait for a verdict: a few in memory, more in a temporary file, so that a round takes no more memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import IO

import numpy as np

from perennial.common.command.errors import RunError
from perennial.common.wire.chains import Vector

# Bytes that stay in memory; all go to the file once there are more.
_IN_MEMORY = 2**21


class Spool:
    """Keeps models, by the number that ``put`` gives each set of them. The file has no name, and goes with this."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: list[tuple[int, tuple[str, ...]]] = []

    def put(self, models: Mapping[str, Vector]) -> int:
        """Keep models of one size, by chain."""
        try:
            self._file = file = self._file or tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
            self._places.append((file.seek(0, 2), tuple(models)))
            for model in models.values():
                file.write(model.tobytes())
        except OSError as error:
            raise RunError(
                f"no room for the updates of a round in {tempfile.gettempdir()}: {error.strerror}; let TMPDIR name a "
                "folder on a larger disk"
            ) from error
        return len(self._places) - 1

    def get(self, number: int, size: int) -> dict[str, Vector]:
        """Return the models of a number, each a vector of ``size`` values."""
        assert self._file is not None, "nothing was put"
        (place, chains), file = self._places[number], self._file
        file.seek(place)
        return {chain: np.frombuffer(file.read(4 * size), np.float32) for chain in chains}

    def close(self) -> None:
        if self._file:
            self._file.close()

    def __del__(self) -> None:
        # Of a round that was abandoned.
        self.close()
