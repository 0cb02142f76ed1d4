"""Run folders written by hand, and the exact numbers read back from them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from perennial.common.command.errors import InputError
from perennial.server.report import reading
from perennial.server.report.columns import RejectionRow
from perennial.server.run.metrics import MetricsFile
from tests.server.report.records import CONFIG, eight_rounds, record


def write_run(folder: Path, records: Sequence[Mapping[str, Any]], config: Mapping[str, object] = CONFIG) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in records))
    return folder


def test_a_folder_is_read_as_columns(tmp_path: Path) -> None:
    run = reading.read(write_run(tmp_path / "mine", eight_rounds()))
    assert (run.name, run.config, run.manifest, len(run.rounds)) == ("mine", CONFIG, {}, 8)
    assert run.rounds.block.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert run.rounds.cycle.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert run.rounds.train_loss_mixed.tolist() == [2.0 / number for number in range(1, 9)]
    assert np.isnan(run.rounds.train_loss_separate).all()
    assert run.rounds.chosen.tolist() == [1, 0, 1, 1, 0, 0, 0, -1]
    assert run.rounds.accuracy.shape == (8, 2)


def test_a_recorded_mean_is_taken_as_it_is() -> None:
    run = reading.from_records("run", CONFIG, [record(1, accuracy=[0.5, None], mean_accuracy=0.5)])
    assert run.evaluated.mean_accuracy.tolist() == [0.5]
    assert np.isnan(run.evaluated.accuracy[0, 1])


def test_rejections_and_quarantine_are_listed_with_their_round() -> None:
    entry = {"node": "77", "clients": [3, 4], "reason": "NaN in fc.weight"}
    rounds = [record(1, rejections=[entry], clients_rejected=2), record(2, quarantined=["77"])]
    run = reading.from_records("run", CONFIG, [*rounds, record(3, quarantined=["77"])])
    assert run.rejections == (RejectionRow(1, "77", (3, 4), "NaN in fc.weight"),)
    assert run.quarantined == {"77": 2}


def test_block_names_come_from_the_manifest(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", eight_rounds())
    assert reading.read(folder).block_names == ("block 0", "block 1")
    (folder / "predictors").mkdir()
    (folder / "predictors" / "manifest.json").write_text('{"format": 1, "blocks": ["day", "night"]}')
    assert reading.read(folder).block_names == ("day", "night")


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_cut_off_last_line_is_left_out(tmp_path: Path, kept: int) -> None:
    folder = write_run(tmp_path / "run", eight_rounds()[:2])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record(3))[:kept])
    assert len(reading.read(folder).rounds) == 2


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", eight_rounds()[:2])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record(3)))
    assert len(reading.read(folder).rounds) == 3


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", eight_rounds())
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[3] = lines[3][:10]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 4"):
        reading.read(folder)


def test_a_damaged_line_in_the_middle_is_named_and_the_other_rounds_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    folder = write_run(tmp_path / "run", [])
    metrics = MetricsFile(folder / "metrics.jsonl", "a run")
    for row in eight_rounds():
        metrics.append(row)
    metrics.close()
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"0.5", b"0.9", 1) if b"0.5" in lines[3] else lines[3].replace(b"2", b"3", 1)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines) + b'{"server-round": 9, "half')
    assert reading.read(folder).rounds.server_round.tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert caplog.messages == [f"{folder}/metrics.jsonl is damaged in line 4; the report is of the other rounds"]


@pytest.mark.parametrize(
    ("rounds", "message"),
    [
        ([record(1), record(1)], "server-round must ascend"),
        ([record(1, cycle=...)], "no cycle"),
        ([record(1, chosen="both")], "both"),
        ([record(1, accuracy=["high", 0.1])], "high"),
        ([record(1, bytes_up=None)], "metrics"),
    ],
)
def test_metrics_that_make_no_sense_are_an_input_error(
    tmp_path: Path, rounds: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        reading.read(write_run(tmp_path / "run", rounds))


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path / "run", eight_rounds())
    (folder / name).unlink()
    with pytest.raises(InputError, match=name):
        reading.read(folder)


def test_read_all_takes_a_run_or_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("mm-psgd", "fedavg"):
        write_run(tmp_path / "out" / name, eight_rounds())
    assert [run.name for run in reading.read_all(tmp_path / "out")] == ["fedavg", "mm-psgd"]
    assert [run.name for run in reading.read_all(tmp_path / "out" / "fedavg")] == ["fedavg"]
    with pytest.raises(InputError, match="no run here"):
        reading.read_all(tmp_path)
