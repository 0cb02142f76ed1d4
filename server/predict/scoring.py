"""``flower-predict eval``: the score of each block's predictor on a folder of shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Shard
from perennial.common.data.shards import ShardFolder
from perennial.server.predict.loading import open_version
from perennial.server.predict.predictor_network import PredictorNetwork
from perennial.server.predict.showing import table
from perennial.server.run.tree import DamagedError

_BATCH = 250


def score(run: Path, version: int | None, data: Path) -> int:
    """Print the score of each block's predictor, and their mean."""
    found, shards = open_version(run, version), ShardFolder(data)
    if shards.blocks != len(found.blocks):
        raise InputError(
            f"{data} has {shards.blocks} blocks, the run has {len(found.blocks)}: {', '.join(found.blocks)}"
        )
    tested = all(shards.test(block) is not None for block in range(shards.blocks))
    rows, scores, name = [], [], ""
    for block, there in enumerate(found.trained):
        if not there:
            rows.append((found.blocks[block], "not trained yet", ""))
            continue
        try:
            network = PredictorNetwork.of(found.predictor(block))
        except DamagedError as error:
            raise InputError(f"{error}; choose another version, or publish it again") from error
        each = np.concatenate(list(_each(network, _shards(shards, block, tested), data)))
        name = network.task.score.name
        scores.append(each.mean())
        rows.append((found.blocks[block], f"{scores[-1]:.4f}", str(len(each))))
    if not scores:
        raise InputError(f"no block of version {found.number} is trained yet")
    rows = [("block", name, "examples"), *rows, ("mean", f"{np.mean(scores):.4f}", "")]
    print(f"{run}, version {found.number}, on {data} ({'test sets' if tested else 'what its clients hold'})")
    for line in table(rows):
        print(line)
    return 0


def _shards(shards: ShardFolder, block: int, tested: bool) -> Iterator[Shard]:
    if tested:
        found = shards.test(block)
        assert found is not None
        yield found
        return
    if not shards.clients:
        raise InputError(f"{shards.folder} has neither test/ for each block nor clients; there is nothing to score on")
    for client in shards.clients:
        yield shards.shard(client, block)


def _each(network: PredictorNetwork, found: Iterator[Shard], where: Path) -> Iterator[np.ndarray]:
    for shard in found:
        for start in range(0, len(shard.rows), _BATCH):
            rows = shard.rows[start : start + _BATCH]
            x, y = tuple(one[rows] for one in shard.x), None if shard.y is None else shard.y[rows]
            network.signature.check(x, y, str(where))
            yield network.score(x, y)
