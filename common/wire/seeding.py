"""Randomness that derives from (seed, purpose, client, round) alone, so that nothing else can change a run.

Draws that clients make are hashed counters: one vectorised expression gives every client's numbers, and a client
gets the same ones whoever else takes part. SplitMix64 (Steele, Lea and Flood, 2014) is the hash.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a generator of its own for a purpose, for draws that are not on the hot path."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *numbers])


def draw_rows(
    seed: int, purpose: str, server_round: int, clients: Sequence[int], sizes: Sequence[int], count: int
) -> NDArray[np.int64]:
    """Return, for each client, ``count`` rows of its shard drawn uniformly with replacement: (clients, count)."""
    head = _mixed(_mixed(_mixed(seed & _MASK) ^ zlib.crc32(purpose.encode())) ^ server_round)
    streams = _hash(np.uint64(head) ^ np.asarray(clients, np.uint64))
    with np.errstate(over="ignore"):
        words = _hash(streams[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    # 53 bits make a float64 in [0, 1); its product with a size below 2**53 never rounds up to the size itself.
    fractions = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    rows: NDArray[np.int64] = (fractions * np.asarray(sizes, np.float64)[:, None]).astype(np.int64)
    return rows


def _hash(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * _MIX_1
        words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


def _mixed(word: int) -> int:
    return int(_hash(np.array([(word + int(_GOLDEN)) & _MASK], np.uint64))[0])
