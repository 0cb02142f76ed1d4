"""A control for figure 2: how much of a predictor's lead is knowing the block's mix of labels.

A model trained on one mix of labels and asked about another can be told: its scores are shifted by the logarithm of how
much more frequent a label is where it is asked. Shapes: n examples, K labels.
mix.csv  a line a run: accuracy in % of its last models, mean over blocks, as they are and told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from perennial.common.command.config import RunConfig
from perennial.common.data.datasets import Shard, Shards, as_float
from perennial.common.data.source import open_shards
from perennial.common.task import models
from perennial.server.run.folder import RunFolder
from perennial.simulation.paper.series import read_csv, write_csv

FILE = "mix.csv"
RUNS = ("fedavg", "fedavg-shuffled", "mm-psgd")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Told:
    """Accuracy in % of a run's last models, mean over blocks: as they are, and told the block's mix of labels."""

    run: str
    seed: int
    plain: float
    told: float


def told(scores: Floats, trained: Floats, asked: Floats) -> Floats:
    """Return log-probabilities (n, K) of a model trained at label frequencies ``trained`` (K,), for those ``asked``."""
    return scores + np.log(asked) - np.log(trained)


def measure(output: Path) -> list[Told]:
    """Return what the runs in ``output`` come to, of those that are at their end."""
    folders = [RunFolder(output / run) for run in RUNS]
    return [_measured(folder) for folder in folders if folder.is_complete()]


def _measured(folder: RunFolder) -> Told:
    config = RunConfig.from_mapping(folder.config())
    # Shuffled shards do not show what a block's labels would be.
    shards, blocks = open_shards(config), open_shards(replace(config, shuffled=False))
    network = models.build(config.model, shards.shape, shards.classes).eval()
    right: list[tuple[float, float]] = []
    for block in range(shards.blocks):
        network.load_state_dict(load_file(folder.path / "predictors" / f"block-{block}.safetensors"))
        test = shards.test(block)
        assert test is not None, "the paper's data sets have a test set for every block"
        with torch.inference_mode():
            scores = torch.log_softmax(network(torch.from_numpy(as_float(test.x[0][test.rows]))), 1).double().numpy()
        labels = _labels(test)
        # FedAvg's one model comes from the schedule's last block, a predictor from its own.
        last = shards.blocks - 1 if config.strategy == "fedavg" else block
        shifted = told(scores, _frequencies(shards, last), _frequencies(blocks, block))
        right.append((float((scores.argmax(1) == labels).mean()), float((shifted.argmax(1) == labels).mean())))
    plain, after = (100 * float(np.mean(column)) for column in zip(*right, strict=True))
    return Told(folder.path.name, config.seed, plain, after)


def _labels(shard: Shard) -> NDArray[np.int64]:
    assert shard.y is not None, "the paper's data sets have labels"
    return shard.y[shard.rows]


def _frequencies(shards: Shards, block: int) -> Floats:
    """Return how frequent each label is in a block (K,); one that is not there counts half, for its logarithm."""
    parts = [shards.shard(client, block) for client in shards.clients]
    labels = np.concatenate([_labels(part) for part in parts])
    counts = np.maximum(np.bincount(labels, minlength=shards.classes), 0.5)
    return np.asarray(counts / counts.sum(), np.float64)


def write(folder: Path, found: Iterable[Told]) -> None:
    rows = [[one.run, one.seed, f"{one.plain:.2f}", f"{one.told:.2f}"] for one in found]
    write_csv(folder / FILE, ("run", "seed", "plain", "told"), rows)


def read(folder: Path) -> list[Told]:
    """Return what ``write`` left; nothing where it was never called."""
    if not (folder / FILE).exists():
        return []
    rows = read_csv(folder / FILE)
    return [Told(row["run"], int(row["seed"]), float(row["plain"]), float(row["told"])) for row in rows]
