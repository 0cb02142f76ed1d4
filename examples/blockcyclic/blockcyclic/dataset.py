"""blockcyclic: A Flower Baseline. Blocks with labels of their own, cut into shards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from flwr_datasets import FederatedDataset
from sklearn.datasets import load_digits
from torch import Tensor

from perennial.partitioners import BlockCyclicPartitioner

Labelled = tuple[np.ndarray, np.ndarray]


class Blocks:
    """The clients' shards of every block, and the blocks' test sets.

    train, tested: images, uint8 (n, 3, 32, 32), and their labels.
    """

    def __init__(
        self, train: Labelled, tested: Labelled, partitioner: BlockCyclicPartitioner
    ) -> None:
        self.train, self.tested, self.partitioner = train, tested, partitioner
        partitioner.dataset = Dataset.from_dict({"label": train[1]})

    def shard(self, client: int, block: int) -> tuple[Tensor, Tensor]:
        """Return what a client holds of a block."""
        return _tensors(self.train, self.partitioner.rows(client, block))

    def test(self, block: int) -> tuple[Tensor, Tensor]:
        """Return what a block is judged on."""
        labels = Dataset.from_dict({"label": self.tested[1]})
        return _tensors(self.tested, self.partitioner.test_rows(labels, block))


def opened(keys: Mapping[str, Any]) -> Blocks:
    """Return the data of a run; a process opens them once."""
    names = (
        "dataset",
        "num-clients",
        "num-blocks",
        "labels-per-block",
        "block-skew",
        "seed",
    )
    return _opened(*(keys[name] for name in names))


@cache
def _opened(
    dataset: str, clients: int, blocks: int, labels: int, skew: float, seed: int
) -> Blocks:
    # Clients differ in their sizes alone.
    options = {"block_skew": skew, "client_skew": 0.0, "seed": seed}
    partitioner = BlockCyclicPartitioner(clients, blocks, labels, **options)
    load = {"digits": _digits, "cifar10": _cifar10}.get(dataset, lambda: _npz(dataset))
    return Blocks(*load(), partitioner)


def _digits() -> tuple[Labelled, Labelled]:
    """Return scikit-learn's digits as images of CIFAR-10's size, a fifth for tests."""
    digits = load_digits()
    images = np.kron(digits.images * (255 / 16), np.ones((1, 4, 4))).astype(np.uint8)
    images = np.repeat(images[:, None], 3, axis=1)
    tested = np.arange(len(images)) % 5 == 0
    train, test = ((images[part], digits.target[part]) for part in (~tested, tested))
    return train, test


def _cifar10() -> tuple[Labelled, Labelled]:
    """Download CIFAR-10 by Flower Datasets."""
    fds = FederatedDataset(dataset="uoft-cs/cifar10", partitioners={"train": 1})
    splits = (
        fds.load_split(name).with_format("numpy")[:] for name in ("train", "test")
    )
    train, test = (
        (split["img"].transpose(0, 3, 1, 2), split["label"]) for split in splits
    )
    return train, test


def _npz(path: str) -> tuple[Labelled, Labelled]:
    """Return the arrays x_train, y_train, x_test and y_test of a file."""
    with np.load(path) as file:
        train, test = (
            (file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test")
        )
    return train, test


def _tensors(data: Labelled, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    images, labels = data[0][rows].astype(np.float32), data[1][rows].astype(np.int64)
    return torch.from_numpy((images / 255 - 0.5) / 0.5), torch.from_numpy(labels)
