"""The summary, number for number, and how it fits a terminal."""

from __future__ import annotations

import io

import pytest

from perennial.server.report import reading, table
from perennial.server.report.columns import RunResult
from tests.server.report.records import record


def a_run(name: str, accuracies: list[list[float]], blocks: int = 2) -> RunResult:
    """Blocks of one round, evaluated every round, so a cycle is `blocks` rounds."""
    costs = {"bytes_up": 1_500_000, "bytes_down": 2_000_000, "seconds": 0.25}
    rounds = [record(at, blocks, 1, accuracy=accuracy, **costs) for at, accuracy in enumerate(accuracies, 1)]
    return reading.from_records(name, {"blocks": blocks, "rounds-per-block": 1}, rounds)


FEDAVG = a_run("fedavg", [[0.1, 0.1], [0.4, 0.2], [0.7, 0.3], [0.3, 0.5]])
MM = a_run("mm-psgd", [[0.1, 0.1], [0.5, 0.5], [0.6, 0.5], [0.6, 0.5234]])

EXPECTED = """\
run      final %  best %  at round  last cycle %    min..max  block 0  block 1  rounds  MB up  MB down  seconds
-------  -------  ------  --------  ------------  ----------  -------  -------  ------  -----  -------  -------
fedavg      40.0    50.0         3          45.0  40.0..50.0     30.0     50.0       4    6.0      8.0      1.0
mm-psgd     56.2    56.2         4          55.6  55.0..56.2     60.0     52.3       4    6.0      8.0      1.0
"""

NARROW = """\
run      final %  best %  at round  last cycle %    min..max
-------  -------  ------  --------  ------------  ----------
fedavg      40.0    50.0         3          45.0  40.0..50.0
mm-psgd     56.2    56.2         4          55.6  55.0..56.2

run      rounds  MB up  MB down  seconds  block 0  block 1
-------  ------  -----  -------  -------  -------  -------
fedavg        4    6.0      8.0      1.0     30.0     50.0
mm-psgd       4    6.0      8.0      1.0     60.0     52.3
"""


def test_the_summary_has_every_number() -> None:
    assert table.render([FEDAVG, MM], 120) == EXPECTED


def test_what_does_not_fit_goes_below_with_the_names_again() -> None:
    assert table.render([FEDAVG, MM], 64) == NARROW


@pytest.mark.parametrize("width", [40, 57, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    wide = a_run("strategy=mm-psgd, participation=0.05, local-iterations=20, seed=7", [[0.5] * 10] * 10, blocks=10)
    text = table.render([FEDAVG, wide], width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.count("block 9") == 1


def test_a_long_name_keeps_both_ends() -> None:
    first, second = (a_run("local-iterations=10, participation=0.05, seed=" + seed, [[0.5, 0.5]]) for seed in "12")
    text = table.render([first, second], 60)
    assert "local-iteratio" in text
    assert "seed=1 " in text
    assert "seed=2 " in text


def test_what_was_not_measured_is_a_dash() -> None:
    empty = reading.from_records("empty", {"blocks": 2}, [])
    cells = [column.cells[0] for column in table.summary([empty])]
    assert cells == ["empty", "-", "-", "-", "-", "-", "-", "-", "0", "0.0", "0.0", "0.0"]


def test_a_run_with_fewer_blocks_has_dashes_for_the_others() -> None:
    one = a_run("one", [[0.5]], blocks=1)
    blocks = [column for column in table.summary([one, FEDAVG]) if column.about == "blocks"]
    assert [column.cells for column in blocks] == [("50.0", "30.0"), ("-", "50.0")]


def test_best_marks_the_highest_as_shown_and_nothing_where_all_are_equal() -> None:
    columns = {column.heading: column for column in table.summary([FEDAVG, MM])}
    assert columns["final %"].best == {1}
    assert columns["seconds"].best == frozenset()
    assert all(not column.best for column in table.summary([FEDAVG, FEDAVG]))


def test_block_names_are_the_runs_own_where_they_agree() -> None:
    day, other = (
        reading.from_records("run", {"blocks": 2}, [record(1)], {"blocks": names})
        for names in (["day", "night"], ["day", "dusk"])
    )
    assert table.shared_block_names([day]) == ("day", "night")
    assert table.shared_block_names([day, other]) == ("day", "block 1")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bold_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    file, terminal, dumb = io.StringIO(), Terminal(), Terminal()
    table.show([FEDAVG, MM], file)
    table.show([FEDAVG, MM], terminal)
    monkeypatch.setenv("TERM", "dumb")
    table.show([FEDAVG, MM], dumb)
    assert file.getvalue() == dumb.getvalue() == EXPECTED
    assert "\x1b[1m   56.2\x1b[0m" in terminal.getvalue()
    assert terminal.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "") == EXPECTED


def test_names_cannot_steer_the_terminal_nor_break_an_ascii_stream() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    table.show([a_run("nächt\x1b[2J", [[0.5, 0.5]])], stream)
    stream.flush()
    assert b"n?cht?[2J" in raw.getvalue()


@pytest.mark.parametrize(
    ("most", "unit"), [(0, "B"), (999, "B"), (1000, "kB"), (2_500_000, "MB"), (3e9, "GB"), (9e15, "TB")]
)
def test_bytes_are_shown_in_the_unit_of_the_largest(most: float, unit: str) -> None:
    assert table.unit_of(most)[1] == unit


def test_large_amounts_lose_the_decimal_and_gain_separators() -> None:
    assert [table.amount(value) for value in (0, 12.34, 999.94, 12345.6)] == ["0.0", "12.3", "999.9", "12,346"]
