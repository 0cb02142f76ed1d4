"""Texts of tokens in the place of images, as a source: as many as the images, and as meaningless as noise."""

from __future__ import annotations

import numpy as np

from benchmarks.sides.setting import CLIENTS, LENGTH, TOKENS
from perennial.common.command.config import RunConfig
from perennial.common.data.row_shards import RowShards

_ROWS = 250


class Texts:
    """Each client has as many texts in each block as it has images in the paper's setting."""

    def open(self, config: RunConfig) -> RowShards:
        rng, count = np.random.default_rng(0), CLIENTS * config.blocks * _ROWS
        places = np.arange(count)
        return RowShards.of(
            (rng.integers(0, TOKENS, (count, LENGTH)),),
            rng.integers(0, 10, count),
            client=places % CLIENTS,
            block=places // CLIENTS % config.blocks,
            test=places >= count - CLIENTS * config.blocks,
        )
