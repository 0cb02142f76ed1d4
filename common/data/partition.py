"""Block-cyclic partition of a labelled data set, as index arithmetic. Pure; imports neither flwr nor torch.

A block is a set of labels; a label's examples are shared out among the blocks that hold it, but for a part that is
dealt to all blocks; a block is then cut in sequence into one shard a client (the paper's experiments, "Model and
Dataset").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError
from perennial.common.wire.seeding import generator

Rows = NDArray[np.int64]

# Of a shard's mean size: the paper's variance is (10000/MN)^2 around 50000/MN.
SIZE_DEVIATION = 0.2


@dataclass(frozen=True)
class Partition:
    """Who holds what. Shard (client, block) is ``order[block][bounds[block][client]:bounds[block][client + 1]]``.

    order: for each block its rows of the training set; bounds: for each block N + 1 offsets; labels: each block's own;
    tested: (M, classes), what fraction of a label's test rows a block is judged on.
    """

    order: tuple[Rows, ...]
    bounds: tuple[Rows, ...]
    labels: tuple[tuple[int, ...], ...]
    tested: NDArray[np.float64]

    def shard(self, client: int, block: int) -> Rows:
        """Return the rows of D_m^i."""
        bounds = self.bounds[block]
        return self.order[block][bounds[client] : bounds[client + 1]]


def block_labels(blocks: int, classes: int, labels_per_block: int) -> tuple[tuple[int, ...], ...]:
    """Return each block's labels: windows of equal width on the circle of labels, evenly spread.

    Neighbours overlap where ``blocks * labels_per_block`` exceeds ``classes``; every label is used.
    """
    if not 1 <= labels_per_block <= classes:
        raise InputError(f"labels-per-block must be in [1, {classes}], the labels of the data, got {labels_per_block}")
    if blocks * labels_per_block < classes:
        needed = -(-classes // blocks)
        raise InputError(
            f"{blocks} blocks of {labels_per_block} labels cannot use all {classes} labels; "
            f"set labels-per-block to at least {needed}, or use more blocks"
        )
    starts = [block * classes // blocks for block in range(blocks)]
    return tuple(tuple(sorted((start + k) % classes for k in range(labels_per_block))) for start in starts)


def cut(
    y: NDArray[np.int64],
    *,
    classes: int,
    blocks: int,
    clients: int,
    labels_per_block: int,
    block_skew: float,
    client_skew: float,
    shuffled: bool,
    seed: int,
) -> Partition:
    """Partition the training labels ``y`` into blocks and shards: nothing lost, nothing twice, no shard empty.

    block_skew: the fraction of a label's rows that only the blocks of that label get; the rest is dealt to all blocks.
    client_skew: the fraction of a block that is sorted by label before it is cut; the rest stays where it was drawn.
    shuffled: blocks and shards keep their sizes, but their rows are dealt from the whole set at random.
    """
    labels = block_labels(blocks, classes, labels_per_block)
    order = tuple(
        _sort_fraction(rows, y, client_skew, generator(seed, "skew", block))
        for block, rows in enumerate(_share_out(y, labels, block_skew, seed))
    )
    bounds = tuple(
        _shard_bounds(len(rows), clients, block, generator(seed, "sizes", block)) for block, rows in enumerate(order)
    )
    if shuffled:
        everything = generator(seed, "shuffle").permutation(len(y)).astype(np.int64)
        order = tuple(np.split(everything, np.cumsum([len(rows) for rows in order])[:-1]))
    return Partition(order, bounds, labels, _tested(labels, classes, block_skew))


def cut_test(y: NDArray[np.int64], tested: NDArray[np.float64]) -> Rows:
    """Return a block's test rows, in their order: of each label the first ones, ``tested`` says what fraction."""
    rows = [np.flatnonzero(y == label) for label in range(len(tested))]
    parts = [found[: round(fraction * len(found))] for found, fraction in zip(rows, tested.tolist(), strict=True)]
    return np.sort(np.concatenate(parts)).astype(np.int64)


def _tested(labels: tuple[tuple[int, ...], ...], classes: int, block_skew: float) -> NDArray[np.float64]:
    """Return what fraction of a label's test rows a block is judged on: all of its own labels'.

    Of the others' as many as make the block's test set as mixed as its training set, where all labels are held by
    equally many blocks.
    """
    holds = np.array([[label in block for label in range(classes)] for block in labels], np.float64)
    dealt = block_skew * holds / holds.sum(axis=0) + (1 - block_skew) / len(labels)
    return np.asarray(dealt / dealt.max(axis=0), np.float64)


def _share_out(y: NDArray[np.int64], labels: tuple[tuple[int, ...], ...], block_skew: float, seed: int) -> list[Rows]:
    """Deal each label's rows, in random order: so many evenly to the blocks that hold it, the rest evenly to all.

    Return the blocks in random order.
    """
    parts: list[list[Rows]] = [[] for _ in labels]
    for label in sorted({label for block in labels for label in block}):
        holders = [block for block, held in enumerate(labels) if label in held]
        rows = generator(seed, "share", label).permutation(np.flatnonzero(y == label)).astype(np.int64)
        own = round(block_skew * len(rows))
        for receivers, dealt in ((holders, rows[:own]), (range(len(labels)), rows[own:])):
            for block, part in zip(receivers, np.array_split(dealt, len(receivers)), strict=True):
                parts[block].append(part)
    return [generator(seed, "mix", block).permutation(np.concatenate(part)) for block, part in enumerate(parts)]


def _sort_fraction(rows: Rows, y: NDArray[np.int64], fraction: float, rng: np.random.Generator) -> Rows:
    """Sort a random fraction of the positions by label among themselves; the others keep their rows."""
    places = np.sort(rng.permutation(len(rows))[: round(fraction * len(rows))])
    chosen = rows[places]
    sorted_rows = rows.copy()
    sorted_rows[places] = chosen[np.argsort(y[chosen], kind="stable")]
    return sorted_rows


def _shard_bounds(size: int, clients: int, block: int, rng: np.random.Generator) -> Rows:
    """Return offsets of shards whose sizes are normal around size/clients, at least 1 and exactly ``size`` in sum."""
    if size < clients:
        raise InputError(
            f"block {block} has {size} examples, too few for {clients} clients; use fewer clients or fewer blocks"
        )
    weights = np.maximum(rng.normal(1.0, SIZE_DEVIATION, clients), 0.05)
    # One example each is set aside first, so that rounding can empty no shard.
    inner = np.floor(np.cumsum(weights) / weights.sum() * (size - clients) + 0.5).astype(np.int64)
    inner[-1] = size - clients
    return np.concatenate([[0], inner + np.arange(1, clients + 1)]).astype(np.int64)
