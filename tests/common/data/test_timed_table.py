"""Tables with a time column: what the clock cuts, and the first row that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.data.row_shards import RowShards
from perennial.common.data.source import open_shards
from perennial.common.data.timed_table import Table

WEEK = "weekday: Mon-Fri, weekend: Sat,Sun"
ZONE = "America/Chicago"
ROWS = """when,station,rides,rain,wind
2026-03-27T12:00,Clark,10,0.5,3
2026-03-28T12:00,Clark,4,0,1
2026-03-29T23:30,Austin,2,1e-1,2
2026-03-30T00:30,Austin,7,0,0
2026-04-03,Clark,11,0,4
2026-04-04T09:00:00-05:00,Austin,3,0.25,1
"""

Write = Callable[..., Table]


@pytest.fixture
def table(tmp_path: Path) -> Write:
    """Return a way to write a table, and to describe it."""

    def written(text: str = ROWS, **changes: Any) -> Table:
        path = tmp_path / "rides.csv"
        path.write_text(text)
        plain = {"path": path, "time": "when", "client": "station", "target": "rides", "clock": WEEK, "timezone": ZONE}
        return Table(**{**plain, **changes})

    return written


def rows(shards: RowShards) -> list[list[list[int]]]:
    return [[shards.shard(client, block).rows.tolist() for block in range(shards.blocks)] for client in shards.clients]


def test_the_clock_cuts_the_rows_of_each_client(table: Write) -> None:
    shards = table().open(RunConfig())
    # Austin before Clark; Sunday night in Chicago is Monday in UTC.
    assert rows(shards) == [[[3], [2, 5]], [[0, 4], [1]]]
    assert str(shards.signature) == "x float32 2, y in 12 classes"
    assert shards.x[0][2].tolist() == pytest.approx([0.1, 2])
    assert np.asarray(shards.y).tolist() == [10, 4, 2, 7, 11, 3]
    assert shards.test(0) is None


def test_rows_from_a_time_on_are_the_test_set(table: Write) -> None:
    shards = table(test_from="2026-04-03").open(RunConfig())
    assert rows(shards) == [[[3], [2]], [[0], [1]]]
    tests = [shards.test(block) for block in range(2)]
    assert [test.rows.tolist() for test in tests if test] == [[4], [5]]


def test_inputs_and_targets_are_the_named_columns(table: Write) -> None:
    shards = table(inputs=("wind",), target=("rides", "rain")).open(RunConfig())
    assert str(shards.signature) == "x float32 1, y float32 2"
    assert shards.x[0][:, 0].tolist() == [3, 1, 2, 0, 4, 1]
    assert table(target=(), inputs=("rain",)).open(RunConfig()).y is None


def test_the_clock_may_be_the_runs(table: Write) -> None:
    config = RunConfig(clock=WEEK, timezone=ZONE)
    assert rows(table(clock="", timezone="").open(config)) == rows(table().open(RunConfig()))
    with pytest.raises(InputError, match=r"its clock is 'weekday.*the run's is 'day.*give one of them"):
        table().open(RunConfig(clock="day: 08:00-20:00, night: 20:00-08:00"))
    with pytest.raises(InputError, match=r"rides\.csv needs a clock to cut its blocks"):
        table(clock="").open(RunConfig())


def test_shuffled_is_the_runs(table: Write) -> None:
    text = "when,station,rides\n" + "".join(f"2026-03-{day:02d},A,{day}\n" for day in range(1, 29))
    plain, shuffled = (rows(table(text, inputs=("rides",)).open(RunConfig(shuffled=one))) for one in (False, True))
    assert plain != shuffled
    assert [len(part) for part in plain[0]] == [len(part) for part in shuffled[0]]


def test_clients_that_are_numbers_are_in_the_order_of_numbers(table: Write) -> None:
    lines = [f"2026-03-{day},{client},1,0" for client in (10, 9, 100) for day in (27, 28)]
    shards = table("\n".join(["when,station,rides,x", *lines])).open(RunConfig())
    assert rows(shards) == [[[2], [3]], [[0], [1]], [[4], [5]]]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1)), st.sampled_from("ABC"), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
)
def test_every_row_is_cut_as_the_clock_itself_says(table: Write, found: Any, zone: str) -> None:
    """Half of the times are written with their offset, half as the wall clock shows them."""
    spec = ClockSpec.parse(WEEK, zone)
    moments = [when.replace(microsecond=0, tzinfo=ZoneInfo(zone)) for when, _, _ in found]
    written = [
        f"{moment.isoformat() if offset else moment.replace(tzinfo=None)},{client},1,0"
        for moment, (_, client, offset) in zip(moments, found, strict=True)
    ]
    shards = table("\n".join(["when,station,rides,x", *written]), timezone=zone, may_be_empty=True).open(RunConfig())
    clients = sorted({client for _, client, _ in found})
    expected: list[list[list[int]]] = [[[], []] for _ in clients]
    for row, (moment, (_, client, _)) in enumerate(zip(moments, found, strict=True)):
        expected[clients.index(client)][spec.block_at(moment.astimezone(UTC))].append(row)
    assert rows(shards) == expected


@pytest.mark.parametrize("written", ["2026-03-27T12:00Z", "2026-03-27 12:00:00+00:00", "20260327T1200Z", "1774612800"])
def test_times_are_iso_8601_or_seconds(table: Write, written: str) -> None:
    noon = int(datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp())
    assert noon == 1774612800
    clock = "early: 00:00-12:00, late: 12:00-24:00"
    for text, block in [(written, 1), (str(noon - 1), 0)]:
        shards = table(f"when,station,rides,x\n{text},A,1,0", clock=clock, timezone="UTC", may_be_empty=True)
        assert len(shards.open(RunConfig()).shard(0, block).rows) == 1


def changed(row: int, column: int, cell: str) -> str:
    lines = ROWS.splitlines()
    cells = lines[row].split(",")
    cells[column] = cell
    lines[row] = ",".join(cells)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(3, 0, "yesterday"), "column when must hold times from 1970 to 2099, .* got 'yesterday' in row 3"),
        (changed(2, 0, ""), "column when must hold times .* got '' in row 2"),
        (changed(5, 0, "1774612800000"), "column when must hold times .* got '1774612800000' in row 5"),
        (changed(1, 0, "1969-12-31"), "column when must hold times .* in row 1"),
        (changed(1, 0, "9999-12-31T23:59:59-12:00"), "column when must hold times .* in row 1"),
        (changed(4, 1, ""), "column station is empty in row 4"),
        (changed(4, 2, "many"), "column rides must hold numbers, got 'many' in row 4"),
        (changed(6, 3, ""), "column rain must hold numbers, got '' in row 6"),
        (changed(6, 3, "nan"), "column rain must hold numbers, got nan in row 6"),
        (changed(6, 3, "1e39"), "column rain must hold numbers, got 1e[+]39 in row 6"),
        (changed(2, 4, "1,2"), "row 2 has 6 cells, the header has 5"),
        (ROWS.splitlines()[0], "has no rows"),
        ("", "column 'when' is not there; the columns are"),
        (ROWS.replace("station", "place"), "column 'station' is not there; the columns are when, place, rides"),
        (ROWS.replace("station", "when"), "column 'when' is there twice"),
        ('when,station,rides,x\n"2026', "cannot be read as CSV"),
        ("when,station,rides\n2026-03-27,A,1", "no column is left for x"),
        ("when,station,rides,x\n2026-03-27,A,1,0", "client A has no rows of block weekend"),
    ],
)
def test_a_table_that_is_wrong_is_refused_by_its_first_wrong_row(table: Write, text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"rides\.csv.*{message}"):
        table(text).open(RunConfig())


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_refused(table: Write, tmp_path: Path) -> None:
    described = table()
    described.path.write_bytes(b"when,station\n\xff\xfe,A\n")
    with pytest.raises(InputError, match="cannot be read as CSV"):
        described.open(RunConfig())
    with pytest.raises(InputError, match=r"none\.csv: No such file"):
        table(path=tmp_path / "none.csv").open(RunConfig())


@pytest.mark.parametrize(("first", "purpose"), [("2000-01-01", "train on"), ("2050-01-01", "test on")])
def test_a_test_time_outside_the_table_is_refused(table: Write, first: str, purpose: str) -> None:
    with pytest.raises(InputError, match=f"test-from '{first}' leaves no rows to {purpose}"):
        table(test_from=first).open(RunConfig())


def describe(table: Write, tmp_path: Path, text: str) -> str:
    table()
    (tmp_path / "rides.yaml").write_text(text)
    return str(tmp_path / "rides.yaml")


def test_a_description_in_a_file_stands_for_the_table(table: Write, tmp_path: Path) -> None:
    described = (
        "path: rides.csv\ntime: when\nclient: station\ntarget: rides\ninputs: [rain]\n"
        f"clock: '{WEEK}'\ntimezone: {ZONE}\ntest-from: 2026-04-03\nmay-be-empty: true\n"
    )
    found = open_shards(RunConfig(data=describe(table, tmp_path, described)))
    expected = table(inputs=("rain",), test_from="2026-04-03", may_be_empty=True).open(RunConfig())
    assert isinstance(found, RowShards)
    assert rows(found) == rows(expected)
    assert found.signature == expected.signature


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must describe a table by path, time, client"),
        ("path: rides.csv\ntime: when", "client is missing; a table needs path, time and client"),
        ("path: rides.csv\ntimes: when", "unknown key 'times'; the keys are time"),
        ("path: rides.csv\ntime: [when]", r"time must be text, got \['when'\]"),
        ("path: rides.csv\nmay-be-empty: 3", "may-be-empty must be true or false, got 3"),
        ("path: [", "cannot be read"),
        ("path: a\npath: b", "cannot be read"),
    ],
)
def test_a_description_that_is_wrong_is_refused(table: Write, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=rf"rides\.yaml.*{message}"):
        open_shards(RunConfig(data=describe(table, tmp_path, text)))


def test_parquet_is_cut_as_csv_is(table: Write, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    expected = table(may_be_empty=True).open(RunConfig())
    naive = [datetime(2026, 3, 27, 12), datetime(2026, 3, 28, 12), datetime(2026, 3, 29, 23, 30),
             datetime(2026, 3, 30, 0, 30), datetime(2026, 4, 3), datetime(2026, 4, 4, 9)]  # fmt: skip
    aware = [moment.replace(tzinfo=ZoneInfo(ZONE)) for moment in naive]
    columns = {
        "station": ["Clark", "Clark", "Austin", "Austin", "Clark", "Austin"],
        "rides": [10, 4, 2, 7, 11, 3],
        "rain": [0.5, 0, 0.1, 0, 0, 0.25],
        "wind": [3, 1, 2, 0, 4, 1],
    }
    times = [arrow.array(naive), arrow.array(aware, arrow.timestamp("ms", ZONE)),
             arrow.array([int(moment.timestamp()) for moment in aware]),
             arrow.array([moment.isoformat() for moment in aware])]  # fmt: skip
    for when in times:
        parquet.write_table(arrow.table({"when": when, **columns}), tmp_path / "rides.parquet")
        found = table(path=tmp_path / "rides.parquet").open(RunConfig())
        assert rows(found) == rows(expected)
        assert (found.x[0] == expected.x[0]).all()
        assert found.signature == expected.signature
    days = arrow.array([moment.date() for moment in naive])
    parquet.write_table(arrow.table({"when": days, **columns}), tmp_path / "rides.parquet")
    assert rows(table(path=tmp_path / "rides.parquet").open(RunConfig())) == rows(expected)


def test_parquet_with_empty_cells_names_the_first(table: Write, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"when": [1, 2, None], "station": ["A"] * 3, "rides": [1] * 3, "x": [0.0] * 3}),
                        tmp_path / "rides.parquet")  # fmt: skip
    with pytest.raises(InputError, match=r"rides\.parquet: column when is empty in row 3"):
        table(path=tmp_path / "rides.parquet").open(RunConfig())
    (tmp_path / "rides.parquet").write_bytes(b"PAR?")
    with pytest.raises(InputError, match=r"rides\.parquet cannot be read as Parquet"):
        table(path=tmp_path / "rides.parquet").open(RunConfig())
