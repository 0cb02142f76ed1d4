"""Randomness that depends on (seed, purpose, client, round) and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.wire.seeding import draw_rows, generator

seeds = st.integers(0, 2**63 - 1)


@given(
    seeds,
    st.integers(1, 10**6),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 10**6)), min_size=1, max_size=20),
)
def test_rows_lie_in_the_shard(seed: int, server_round: int, clients: list[tuple[int, int]]) -> None:
    ids, sizes = zip(*clients, strict=True)
    rows = draw_rows(seed, "batches", server_round, ids, sizes, 8)
    assert rows.shape == (len(ids), 8)
    assert rows.dtype == np.int64
    assert (rows >= 0).all()
    assert (rows < np.array(sizes)[:, None]).all()


@given(seeds, st.integers(1, 1000), st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=10, unique=True))
def test_a_client_draws_the_same_whoever_else_takes_part(seed: int, server_round: int, clients: list[int]) -> None:
    together = draw_rows(seed, "batches", server_round, clients, [50] * len(clients), 6)
    for place, client in enumerate(clients):
        assert (draw_rows(seed, "batches", server_round, [client], [50], 6)[0] == together[place]).all()


@given(seeds, st.integers(1, 5))
def test_a_longer_draw_begins_with_the_shorter_one(seed: int, count: int) -> None:
    longer = draw_rows(seed, "batches", 1, [3], [1000], 20)[0]
    assert (longer[:count] == draw_rows(seed, "batches", 1, [3], [1000], count)[0]).all()


@pytest.mark.parametrize(
    ("seed", "purpose", "server_round", "client"),
    [(1, "batches", 1, 0), (0, "judged", 1, 0), (0, "batches", 2, 0), (0, "batches", 1, 1)],
)
def test_seed_purpose_round_and_client_each_change_the_draw(
    seed: int, purpose: str, server_round: int, client: int
) -> None:
    base = draw_rows(0, "batches", 1, [0], [10**6], 8)
    assert (draw_rows(seed, purpose, server_round, [client], [10**6], 8) != base).any()


def test_draws_are_uniform() -> None:
    rows = draw_rows(5, "batches", 9, range(200), [10] * 200, 500)
    counts = np.bincount(rows.ravel(), minlength=10)
    # 10,000 expected in each of ten cells; six standard deviations are 570.
    assert np.abs(counts - 10_000).max() < 570


def test_neighbouring_clients_are_uncorrelated() -> None:
    rows = draw_rows(0, "batches", 1, range(50), [10**6] * 50, 400).astype(np.float64)
    off_diagonal = np.corrcoef(rows) - np.eye(50)
    assert np.abs(off_diagonal).max() < 0.25


def test_draws_stay_the_same_over_versions() -> None:
    """Golden numbers: a change here changes every published result."""
    assert draw_rows(0, "batches", 1, [0, 7], [100, 100], 4).tolist() == GOLDEN


def test_generators_of_different_purposes_differ_and_repeat() -> None:
    first, again, other = generator(1, "a", 2), generator(1, "a", 2), generator(1, "b", 2)
    draws = [rng.integers(0, 2**32, 4).tolist() for rng in (first, again, other)]
    assert draws[0] == draws[1] != draws[2]


GOLDEN = [[38, 73, 25, 55], [50, 98, 20, 38]]
