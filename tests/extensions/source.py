"""A data source: examples in memory. `data: tests.extensions.source:Drawn` mimics a folder of the same shards."""

import numpy as np

from perennial.common.data.row_shards import RowShards
from tests.conftest import make_data

BLOCKS, CLIENTS = 2, 4


class Drawn:
    def open(self, config):
        """All examples twice: once for the client that has them, and once in the test set of their block."""
        parts = [
            (x, y, np.full(len(y), client), np.full(len(y), block), np.full(len(y), test))
            for test in (False, True)
            for block, of_block in enumerate(make_data(BLOCKS, CLIENTS))
            for client, (x, y) in enumerate(of_block)
        ]
        x, y, client, block, test = map(np.concatenate, zip(*parts, strict=True))
        return RowShards.of((x,), y, client=client, block=block, test=test)
