"""What a model can do that each client fine-tunes on its own shard before it predicts, block by block.

A control: it needs labels and training on the device in every block, and sends no message.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.client.engines.engine import Engine, Received, Work
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Shards
from perennial.common.data.examples import Inputs, Targets
from perennial.common.data.partition import Rows
from perennial.common.data.row_shards import RowShards
from perennial.common.data.told_shards import ToldShards
from perennial.common.wire.chains import Vector
from perennial.common.wire.seeding import draw_rows
from perennial.server.run.evaluate import Right


class TunedRight:
    """Fills ``Right``: each test row is answered by the model as its own client has fine-tuned it in the row's block.

    The steps are those of training, at ``lr-mixed``; a client without training rows of a block keeps the model.
    """

    def __init__(self, right: Right, shards: Shards, engine: Engine, config: RunConfig) -> None:
        plain = shards.plain if isinstance(shards, ToldShards) else shards
        if not isinstance(plain, RowShards) or plain.owner is None:
            raise InputError(
                "fine-tune-steps needs data that know the client of each test example, as chicago, flights or a table"
            )
        self._right, self._shards, self._engine, self._config = right, shards, engine, config
        self._place = np.full(len(plain.owner), -1, np.int64)
        for block, rows in enumerate(plain.tests):
            self._place[rows] = plain.owner[rows] * shards.blocks + block
        self._lock = threading.Lock()
        self._model: Vector | None = None
        self._tuned: dict[int, Vector] = {}

    def __call__(self, model: Vector, x: Inputs, y: Targets, rows: Rows) -> NDArray[Any]:
        found = np.empty(len(rows), np.float64)
        places = self._place[rows]
        for place in np.unique(places).tolist():
            own = places == place
            found[own] = self._right(self._of(model, place), x, y, rows[own])
        return found

    def _of(self, model: Vector, place: int) -> Vector:
        """Return the model as the client has tuned it in the block of ``place``; batches of rows come in threads."""
        with self._lock:
            if model is not self._model:
                self._model, self._tuned = model, {}
            if place not in self._tuned:
                self._tuned[place] = self._fine_tuned(model, *divmod(place, self._shards.blocks))
            return self._tuned[place]

    def _fine_tuned(self, model: Vector, client: int, block: int) -> Vector:
        shard, config = self._shards.shard(client, block), self._config
        if not len(shard.rows):
            return model
        steps, size = config.fine_tune_steps, config.batch_size
        drawn = draw_rows(config.seed, "fine-tune", block, [client], [len(shard.rows)], steps * size)
        batches = shard.rows[drawn[0]].reshape(steps, size) if size else np.tile(shard.rows, (steps, 1))
        work = Work(client, shard.x, shard.y, batches, shard.rows[:0])
        return self._engine.train([Received(model, config.lr_mixed)], [work])[0].params
