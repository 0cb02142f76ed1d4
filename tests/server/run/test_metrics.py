"""metrics.jsonl: every line can be checked by itself; what is cut off, damaged or another run's is noticed."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.server.run.metrics import Mark, MetricsFile, read_rows

RUN = "5f0c"


def row(server_round: int) -> dict[str, Any]:
    return {"server-round": server_round, "loss-mixed": 1 / server_round, "chosen": None, "text": 'ö\n"}'}


def written(path: Path, rounds: int, run: str = RUN) -> Mark:
    metrics = MetricsFile(path, run)
    for server_round in range(1, rounds + 1):
        metrics.append(row(server_round))
    metrics.sync()
    metrics.close()
    return metrics.mark()


def rounds_in(path: Path) -> list[int]:
    return [one["server-round"] for one in read_rows(path).rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_rows_come_back_with_their_run(path: Path) -> None:
    written(path, 3)
    found = read_rows(path)
    assert list(found.rows) == [{**row(server_round), "run": RUN} for server_round in (1, 2, 3)]
    assert (found.damaged, found.runs) == ((), {RUN})


def test_each_line_is_plain_json_with_run_and_checksum_at_its_end(path: Path) -> None:
    written(path, 1)
    assert path.read_bytes().count(b"\n") == 1
    assert list(json.loads(path.read_text())) == [*row(1), "run", "crc"]


def test_each_row_is_in_the_file_when_its_round_is_done(path: Path) -> None:
    metrics = MetricsFile(path, RUN)
    metrics.append(row(1))
    assert rounds_in(path) == [1]
    metrics.close()


def test_the_mark_is_that_of_what_is_read_back(path: Path) -> None:
    assert read_rows(path).end == Mark()
    mark = written(path, 3)
    assert read_rows(path).end == read_rows(path, mark.position).end == mark


def test_going_on_cuts_off_what_the_checkpoint_did_not_know(path: Path, warned: pytest.LogCaptureFixture) -> None:
    mark = written(path, 2)
    before = path.read_bytes()
    metrics = MetricsFile(path, RUN, mark)
    metrics.append(row(3))
    metrics.close()
    with path.open("ab") as file:
        file.write(b'{"half a line')
    again = MetricsFile(path, RUN, mark)
    assert path.read_bytes() == before
    again.append(row(3))
    again.close()
    assert rounds_in(path) == [1, 2, 3]
    assert read_rows(path).end == again.mark()
    assert not warned.records


def test_half_a_line_at_the_end_of_a_file_that_is_written_is_no_damage(path: Path) -> None:
    mark = written(path, 2)
    with path.open("ab") as file:
        file.write(b'{"server-round": 3')
    assert read_rows(path).damaged == ()
    assert read_rows(path).end == mark
    assert read_rows(path, mark.position + 5).damaged == (3,)


def test_damage_in_the_middle_of_the_same_length_is_named_and_what_is_left_is_used(
    path: Path, warned: pytest.LogCaptureFixture
) -> None:
    mark = written(path, 5)
    content = path.read_bytes()
    # A digit for a digit: still JSON, and a number that nobody measured.
    path.write_bytes(content.replace(b'"loss-mixed": 0.5', b'"loss-mixed": 0.7'))
    assert read_rows(path).damaged == (2,)
    metrics = MetricsFile(path, RUN, mark)
    metrics.append(row(6))
    metrics.close()
    assert f"{path} is damaged in line 2; the other rows are used" in warned.text
    assert rounds_in(path) == [1, 3, 4, 5, 6]
    assert read_rows(path).end == metrics.mark()


def test_a_damaged_line_s_end_at_the_cut_costs_that_line_alone(path: Path, warned: pytest.LogCaptureFixture) -> None:
    mark = written(path, 3)
    path.write_bytes(path.read_bytes()[:-1] + b"x" + b'{"server-round": 4}\n')
    metrics = MetricsFile(path, RUN, mark)
    metrics.append(row(4))
    metrics.close()
    assert "is damaged in line 3" in warned.text
    assert rounds_in(path) == [1, 2, 4]
    assert read_rows(path).end == metrics.mark()


@pytest.mark.parametrize("left", [0, 50, None])
def test_rows_that_are_missing_are_said_and_the_rest_is_used(
    path: Path, warned: pytest.LogCaptureFixture, left: int | None
) -> None:
    mark = written(path, 2)
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    metrics = MetricsFile(path, RUN, mark)
    metrics.append(row(3))
    metrics.close()
    assert f"has {left or 0} bytes, and had {mark.position} when the checkpoint was written" in warned.text
    assert rounds_in(path) == [3]


def test_whole_lines_that_were_put_there_are_said(path: Path, warned: pytest.LogCaptureFixture) -> None:
    mark = written(path, 2)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(second + first)
    MetricsFile(path, RUN, mark).close()
    assert "has other rows than when the checkpoint was written" in warned.text


def test_the_metrics_of_another_run_are_refused_and_left_as_they_are(path: Path) -> None:
    written(path, 5, run="other")
    content = path.read_bytes()
    with pytest.raises(InputError, match="has rows of run other, and the checkpoint is of run 5f0c; put back"):
        MetricsFile(path, RUN, Mark(300, 7))
    assert path.read_bytes() == content


def test_a_row_that_does_not_fit_on_the_disk_leaves_no_half_line(path: Path) -> None:
    metrics = MetricsFile(path, RUN)
    metrics.append(row(1))
    file = metrics._file

    class Full:
        """Takes ten bytes, then says that the disk is full."""

        def __init__(self) -> None:
            self.left = 10

        def __getattr__(self, name: str) -> Any:
            return getattr(file, name)

        def write(self, content: bytes) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            count, self.left = file.write(content[: self.left]), 0
            return int(count or 0)

    metrics._file = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space left") as raised:
        metrics.append(row(2))
    assert raised.value.filename == str(path)
    metrics._file = file
    metrics.append(row(2))
    metrics.close()
    assert rounds_in(path) == [1, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_any_changed_byte_costs_at_most_two_rows_and_invents_none(path: Path, data: st.DataObject) -> None:
    mark = written(path, 6)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    metrics = MetricsFile(path, RUN, mark)
    metrics.append(row(7))
    metrics.close()
    found = read_rows(path)
    expected = {server_round: {**row(server_round), "run": RUN} for server_round in range(1, 8)}
    assert all(one == expected[one["server-round"]] for one in found.rows)
    assert len(found.rows) >= 5
    assert found.rows[-1]["server-round"] == 7
