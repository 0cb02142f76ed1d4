"""The block-cyclic partition: nothing lost, nothing twice, no shard empty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.data.partition import Partition, block_labels, cut, cut_test


def cut_of(y: Any, **changes: Any) -> Partition:
    options = {"classes": 10, "blocks": 5, "clients": 4, "labels_per_block": 4, "shuffled": False}
    options |= {"block_skew": 1.0, "client_skew": 1.0}
    return cut(np.asarray(y, np.int64), **{**options, "seed": 0, **changes})


def labels_of(n: int, classes: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, classes, n)


def shards_of(partition: Partition, block: int) -> list[Any]:
    return [partition.shard(client, block) for client in range(len(partition.bounds[block]) - 1)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    classes = draw(st.integers(2, 10))
    blocks = draw(st.integers(1, 6))
    least = -(-classes // blocks)
    options = {
        "classes": classes,
        "blocks": blocks,
        "labels_per_block": draw(st.integers(least, classes)),
        "clients": draw(st.integers(1, 12)),
        "block_skew": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "client_skew": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "shuffled": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**40)),
    }
    return labels_of(draw(st.integers(60, 400)), classes, options["seed"]), options


@settings(deadline=None)
@given(cases())
def test_every_row_is_in_exactly_one_shard_and_no_shard_is_empty(case: tuple[Any, dict[str, Any]]) -> None:
    y, options = case
    try:
        partition = cut_of(y, **options)
    except InputError:
        assume(False)
    shards = [shard for block in range(options["blocks"]) for shard in shards_of(partition, block)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(y)))
    assert min(len(shard) for shard in shards) >= 1


@settings(deadline=None)
@given(cases())
def test_a_block_holds_only_its_labels(case: tuple[Any, dict[str, Any]]) -> None:
    y, options = case
    assume(not options["shuffled"])
    try:
        partition = cut_of(y, **{**options, "block_skew": 1.0})
    except InputError:
        assume(False)
    for rows, labels in zip(partition.order, partition.labels, strict=True):
        assert set(y[rows].tolist()) <= set(labels)


@given(st.integers(1, 12), st.integers(2, 20), st.data())
def test_blocks_use_every_label_in_windows_of_equal_width(blocks: int, classes: int, data: st.DataObject) -> None:
    width = data.draw(st.integers(-(-classes // blocks), classes))
    labels = block_labels(blocks, classes, width)
    assert len(labels) == blocks
    assert all(len(set(block)) == width for block in labels)
    assert {label for block in labels for label in block} == set(range(classes))


def test_neighbouring_blocks_of_the_paper_overlap() -> None:
    assert block_labels(5, 10, 4) == ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9), (0, 1, 8, 9))


def test_a_labels_rows_are_shared_out_evenly() -> None:
    y = labels_of(4000, 10)
    partition = cut_of(y)
    for label in range(10):
        shares = [
            int((y[rows] == label).sum())
            for rows, labels in zip(partition.order, partition.labels, strict=True)
            if label in labels
        ]
        assert len(shares) == 2
        assert max(shares) - min(shares) <= 1


def test_what_is_not_skewed_of_a_label_is_dealt_to_all_blocks() -> None:
    partition = cut_of(np.repeat(np.arange(10), 100), labels_per_block=2, block_skew=0.4)
    counts = [np.bincount(np.repeat(np.arange(10), 100)[rows], minlength=10).tolist() for rows in partition.order]
    # 40 of a label's 100 rows are its block's alone; each of the 5 blocks gets 12 of the other 60.
    assert counts[0] == [52, 52, 12, 12, 12, 12, 12, 12, 12, 12]
    assert counts[4] == [12, 12, 12, 12, 12, 12, 12, 12, 52, 52]


@given(st.floats(0, 1), st.sampled_from([2, 4, 6, 8, 10]))
def test_a_test_set_is_mixed_as_the_blocks_training_set(skew: float, labels_per_block: int) -> None:
    """Where every label is held by as many blocks."""
    y = np.repeat(np.arange(10), 1000)
    partition = cut_of(y, labels_per_block=labels_per_block, block_skew=skew)
    for rows, tested in zip(partition.order, partition.tested, strict=True):
        trained, judged = (np.bincount(y[some], minlength=10) for some in (rows, cut_test(y, tested)))
        assert judged.max() == 1000
        assert trained / trained.sum() == pytest.approx(judged / judged.sum(), abs=5e-3)


def test_full_skew_cuts_a_block_sorted_by_label() -> None:
    y = labels_of(2000, 10)
    partition = cut_of(y, client_skew=1.0, clients=20)
    for block in range(5):
        assert (np.diff(y[partition.order[block]]) >= 0).all()
        assert max(len(set(y[shard].tolist())) for shard in shards_of(partition, block)) <= 2


def test_no_skew_leaves_every_client_with_all_labels_of_the_block() -> None:
    y = labels_of(4000, 10)
    partition = cut_of(y, client_skew=0.0)
    for block in range(5):
        assert all(set(y[shard].tolist()) == set(partition.labels[block]) for shard in shards_of(partition, block))


def test_half_skew_sorts_half_of_a_block_and_leaves_the_rest_in_place() -> None:
    y = labels_of(4000, 10)
    drawn, half = (cut_of(y, client_skew=skew).order[0] for skew in (0.0, 0.5))
    kept = (drawn == half).mean()
    assert 0.45 < kept < 0.65
    # A sorted block descends nowhere and one in random order at 3 of 8 places; half of it lies between.
    assert 0.1 < (np.diff(y[half]) < 0).mean() < (np.diff(y[drawn]) < 0).mean() - 0.05


def test_shard_sizes_are_normal_around_the_mean() -> None:
    partition = cut_of(labels_of(200_000, 10), clients=100)
    for block in range(5):
        sizes = np.diff(partition.bounds[block])
        mean = len(partition.order[block]) / 100
        assert sizes.sum() == len(partition.order[block])
        assert abs(sizes.mean() - mean) < 1e-9
        assert 0.15 < sizes.std() / mean < 0.25


def test_shuffled_keeps_sizes_and_mixes_all_labels() -> None:
    y = labels_of(4000, 10)
    plain, shuffled = (cut_of(y, shuffled=flag) for flag in (False, True))
    for block in range(5):
        assert (plain.bounds[block] == shuffled.bounds[block]).all()
        assert all(set(y[shard].tolist()) == set(range(10)) for shard in shards_of(shuffled, block))
    assert plain.labels == shuffled.labels


def test_one_seed_gives_one_partition_and_another_seed_another() -> None:
    y = labels_of(1000, 10)
    first, again, other = (cut_of(y, seed=seed) for seed in (1, 1, 2))
    same = [(a == b).all() for a, b in zip(first.order, again.order, strict=True)]
    assert all(same)
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(first.order, other.order, strict=True))


def test_a_blocks_test_set_has_all_test_rows_of_its_labels() -> None:
    y = labels_of(500, 10, seed=3)
    partition = cut_of(y)
    for tested, held in zip(partition.tested, partition.labels, strict=True):
        assert cut_test(y, tested).tolist() == [row for row in range(500) if y[row] in held]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels_per_block": 11}, r"labels-per-block must be in \[1, 10\].*got 11"),
        ({"labels_per_block": 0}, r"labels-per-block must be in \[1, 10\].*got 0"),
        ({"labels_per_block": 1}, "5 blocks of 1 labels cannot use all 10 labels; set labels-per-block to at least 2"),
        ({"clients": 500}, "too few for 500 clients; use fewer clients or fewer blocks"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_remedy(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cut_of(labels_of(1000, 10), **changes)


def test_as_many_clients_as_examples_get_one_each() -> None:
    partition = cut_of([0, 1] * 6, classes=2, blocks=1, clients=12, labels_per_block=2)
    assert np.diff(partition.bounds[0]).tolist() == [1] * 12
