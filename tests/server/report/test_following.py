"""A run that goes on is read again and again: what is new is taken, and what was cut off is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml
from prometheus_client import parser

from perennial.server.report.columns import RunResult
from perennial.server.report.web import exposition
from perennial.server.report.web.following import FollowedRun, identity_of, stamp_of
from perennial.server.run.metrics import Mark, MetricsFile
from tests.server.report.records import CONFIG, eight_rounds

Opened = Callable[..., MetricsFile]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    """Opens the folder's metrics for writing; all are closed at the end."""
    with ExitStack() as stack:
        yield lambda run="a", mark=None: stack.enter_context(closing(MetricsFile(folder / "metrics.jsonl", run, mark)))


def rounds_of(run: RunResult | None) -> list[int]:
    assert run is not None
    return [int(number) for number in run.rounds.server_round]


def test_lines_are_taken_as_they_come(folder: Path, opened: Opened) -> None:
    metrics, followed = opened("a"), FollowedRun(folder)
    assert followed.read() is None
    for number, row in enumerate(eight_rounds(), 1):
        metrics.append(row)
        assert rounds_of(followed.read()) == list(range(1, number + 1))


def test_half_a_line_is_taken_when_it_is_whole(folder: Path, opened: Opened) -> None:
    metrics = opened("a")
    for row in eight_rounds()[:3]:
        metrics.append(row)
    whole = (folder / "metrics.jsonl").read_bytes()
    followed = FollowedRun(folder)
    for end in range(0, len(whole) + 1, 7):
        (folder / "metrics.jsonl").write_bytes(whole[:end])
        followed.read()
    (folder / "metrics.jsonl").write_bytes(whole)
    assert rounds_of(followed.read()) == [1, 2, 3]


def test_a_run_that_goes_on_from_an_earlier_round_loses_the_later_ones(folder: Path, opened: Opened) -> None:
    rows = eight_rounds()
    metrics, marks, followed = opened("a"), list[Mark](), FollowedRun(folder)
    for row in rows[:5]:
        metrics.append(row)
        marks.append(metrics.mark())
    assert rounds_of(followed.read()) == [1, 2, 3, 4, 5]
    metrics.close()
    again = opened("a", marks[1])
    # As long as before, so that its size says nothing.
    for row in rows[2:5]:
        again.append({**row, "bytes-up": 77})
    run = followed.read()
    assert rounds_of(run) == [1, 2, 3, 4, 5]
    assert run is not None
    assert run.rounds.bytes_up.tolist() == [50, 50, 77, 77, 77]


def test_a_run_that_will_make_room_is_not_shown(folder: Path, opened: Opened) -> None:
    opened("old").append(eight_rounds()[0])
    followed = FollowedRun(folder, passed=identity_of(folder))
    assert followed.read() is None
    metrics = opened("new")
    assert followed.read() is None
    metrics.append(eight_rounds()[0])
    assert rounds_of(followed.read()) == [1]


def test_something_new_is_seen_without_reading(folder: Path, opened: Opened) -> None:
    metrics = opened("a")
    before = stamp_of([folder])
    assert stamp_of([folder]) == before
    metrics.append(eight_rounds()[0])
    assert stamp_of([folder]) != before


def test_what_prometheus_reads_is_what_the_lines_say(folder: Path, opened: Opened) -> None:
    metrics = opened("a")
    for row in eight_rounds():
        metrics.append({**row, "nodes-online": 4})
    run = FollowedRun(folder, 'a "name"\\\n').read()
    assert run is not None
    found = {
        (sample.name, sample.labels.get("block") or sample.labels.get("chain")): sample.value
        for family in parser.text_string_to_metric_families(exposition.exposition([run]))
        for sample in family.samples
        if sample.labels["run"] == 'a "name"\\\n'
    }
    assert found["perennial_run_rounds_total", None] == 8
    assert found["perennial_run_up_bytes_total", None] == 400
    assert found["perennial_run_chosen_total", "separate"] == 3
    assert found["perennial_run_block", "block 1"] == 1
    assert found["perennial_run_block_score", "block 0"] == 0.7
    assert found["perennial_run_nodes_online", None] == 4
    assert exposition.exposition([]) == "\n"
