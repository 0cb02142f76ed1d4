"""The paper's round, and data of CIFAR-10's shape: real where it is at hand, else noise, which trains as slowly."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from perennial.common.data.datasets import cache_folder

CLIENTS, LOCAL_ITERATIONS, BATCH_SIZE, LEARNING_RATE = 100, 10, 2, 0.01
# Of networks that take texts: the size of the vocabulary, and the length of a text.
TOKENS, LENGTH = 256, 32


def data_file() -> Path:
    """Return an .npz with 50,000 training and 10,000 test images."""
    real = cache_folder() / "cifar10.npz"
    if real.exists():
        return real
    noise = cache_folder() / "noise.npz"
    if not noise.exists():
        noise.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        partial = noise.with_suffix(f".{os.getpid()}.npz")
        sizes = {"train": 50_000, "test": 10_000}
        arrays = {f"x_{part}": rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for part, n in sizes.items()}
        arrays |= {f"y_{part}": rng.integers(0, 10, n, dtype=np.int64) for part, n in sizes.items()}
        np.savez(partial, **arrays)  # type: ignore[arg-type]
        partial.replace(noise)
    return noise
