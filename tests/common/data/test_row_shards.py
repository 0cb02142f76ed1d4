"""Shards out of arrays: nothing is lost, nothing is there twice, and what is missing is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.data.row_shards import RowShards

lots = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), min_size=1, max_size=60)


def made(rows: list[tuple[int, int, bool]], **options: Any) -> RowShards:
    client, block, test = (np.array(column) for column in zip(*rows, strict=True))
    x = (np.arange(len(rows), dtype=np.float64)[:, None],)
    return RowShards.of(x, None, client=client, block=block, test=test, may_be_empty=True, **options)


def every_block_tested(rows: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
    return [*rows, *((0, block, True) for block in range(4))]


@given(lots.map(every_block_tested))
def test_every_row_is_in_the_shard_of_its_client_and_block_or_in_the_blocks_test_set(rows: Any) -> None:
    shards = made(rows)
    for client in shards.clients:
        for block in range(shards.blocks):
            expected = [at for at, row in enumerate(rows) if row == (client, block, False)]
            assert shards.shard(client, block).rows.tolist() == expected
    for block in range(shards.blocks):
        test = shards.test(block)
        assert test is not None
        assert test.rows.tolist() == [at for at, row in enumerate(rows) if row[1:] == (block, True)]


@given(lots.map(every_block_tested), st.integers(0, 3))
def test_shuffling_keeps_the_sizes_the_owners_and_the_test_sets(rows: Any, seed: int) -> None:
    plain, shuffled = made(rows), made(rows, shuffled=True, seed=seed)
    for client in plain.clients:
        before, after = ([one.shard(client, block).rows for block in range(4)] for one in (plain, shuffled))
        assert [len(part) for part in after] == [len(part) for part in before]
        assert sorted(np.concatenate(after).tolist()) == sorted(np.concatenate(before).tolist())
    for ours, theirs in zip(shuffled.tests, plain.tests, strict=True):
        assert ours.tolist() == theirs.tolist()


def test_shuffling_mixes_the_blocks_by_the_seed() -> None:
    rows = [(0, at % 2, False) for at in range(40)]
    first, again, other = (made(rows, shuffled=True, seed=seed).shard(0, 0).rows.tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert {row % 2 for row in first} == {0, 1}


def of(client: Any, block: Any, test: Any = None, **options: Any) -> RowShards:
    arrays = {"client": np.asarray(client), "block": np.asarray(block), "test": test}
    return RowShards.of((np.zeros((len(arrays["client"]), 1)),), None, **arrays, **options)


def test_a_client_without_rows_of_a_block_is_named() -> None:
    names = {"client_names": ["EWR", "JFK"], "block_names": ["day", "night"], "where": "flights.csv"}
    with pytest.raises(InputError, match=r"flights\.csv: client JFK has no rows of block night; leave the client"):
        of([0, 0, 1], [0, 1, 0], **names)
    assert of([0, 0, 1], [0, 1, 0], may_be_empty=True, **names).shard(1, 1).rows.tolist() == []
    with pytest.raises(InputError, match="data: client 1 has no rows of block 1"):
        of([0, 0, 1], [0, 1, 0])


def test_a_block_that_no_row_is_in_is_a_block() -> None:
    assert of([0, 0], [0, 1], block_names=["a", "b", "c"], may_be_empty=True).blocks == 3


def test_a_block_without_test_rows_is_named_if_others_have_some() -> None:
    test = np.array([False, False, True])
    with pytest.raises(InputError, match="block night has no test rows, other blocks have some"):
        of([0, 0, 0], [0, 1, 0], test, block_names=["day", "night"])
    assert of([0, 0, 0], [0, 1, 0]).test(0) is None


@pytest.mark.parametrize(
    ("client", "block", "test", "message"),
    [
        ([0, 1], [0, 0, 0], None, "block must be an integer from 0 on for each of the 2 examples"),
        ([0, -1], [0, 0], None, "client must be an integer from 0 on"),
        ([0.5, 1], [0, 0], None, "client must be an integer from 0 on"),
        ([0, 1], [0, 0], np.array([0, 1]), "test must be true or false for each of the 2 examples"),
    ],
)
def test_what_does_not_say_of_each_example_where_it_belongs_is_refused(
    client: Any, block: Any, test: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        of(client, block, test)


def test_rows_lie_one_below_the_other_whatever_they_were_made_of() -> None:
    x = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    shards = RowShards.of((x,), np.arange(4), client=np.zeros(4, int), block=np.zeros(4, int))
    assert shards.x[0].flags.c_contiguous
    assert (shards.x[0] == x).all()
