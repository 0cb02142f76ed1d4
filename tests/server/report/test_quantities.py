"""Run folders written by hand, and the exact numbers read back from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from perennial.common.command.errors import InputError
from perennial.server.report import quantities, reading

CONFIG: dict[str, object] = {"strategy": "mc-psgd", "blocks": 2, "cycles": 2, "rounds-per-block": 2, "output": "runs/a"}


def record(server_round: int, **changes: Any) -> dict[str, Any]:
    """Round `server_round` of 2 blocks and 2 rounds a block; a value of `...` removes the key."""
    cycle, rest = divmod(server_round - 1, 4)
    block, round_in_block = divmod(rest, 2)
    base: dict[str, Any] = {
        "server-round": server_round,
        "cycle": cycle,
        "block": block,
        "round-in-block": round_in_block,
        "attempts": 1,
        "train-loss-mixed": 2.0 / server_round,
        "train-loss-separate": None,
        "chosen": None,
        "clients-asked": 4,
        "clients-answered": 4,
        "clients-rejected": 0,
        "rejections": [],
        "bytes-down": 100,
        "bytes-up": 50,
        "seconds": 0.5,
    }
    changed = base | {key.replace("_", "-"): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not ...}


# Accuracies of the second block lag behind; round 7 is the best, rounds 5 to 8 are the last cycle.
ACCURACY = {2: [0.5, 0.1], 4: [0.5, 0.3], 5: [0.6, 0.4], 7: [0.8, 0.6], 8: [0.7, 0.5]}
CHOSEN = ["separate", "mixed", "separate", "separate", "mixed", "mixed", "mixed", None]


def eight_rounds() -> list[dict[str, Any]]:
    return [record(number, chosen=CHOSEN[number - 1], accuracy=ACCURACY.get(number, ...)) for number in range(1, 9)]


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


def test_mean_accuracy_is_over_blocks_at_the_evaluated_rounds(tmp_path: Path) -> None:
    run = reading.read(write_run(tmp_path / "run", eight_rounds()))
    assert run.accuracy_rounds.tolist() == [2, 4, 5, 7, 8]
    np.testing.assert_allclose(run.mean_accuracy, [0.3, 0.4, 0.5, 0.7, 0.6])
    assert run.block_accuracy.tolist() == list(ACCURACY.values())


def test_a_recorded_mean_is_taken_as_it_is() -> None:
    run = reading.from_records("run", CONFIG, [record(1, accuracy=[0.5, None], mean_accuracy=0.5)])
    assert run.final == 0.5
    assert np.isnan(run.block_accuracy[0, 1])


def test_final_best_and_last_cycle() -> None:
    run = reading.from_records("run", CONFIG, eight_rounds())
    assert run.final == pytest.approx(0.6)
    assert run.best is not None
    assert astuple(run.best) == pytest.approx((0.7, 7, 1050, 3.5))
    assert run.last_cycle is not None
    assert astuple(run.last_cycle) == pytest.approx((0.6, 0.5, 0.7))


def test_reach_is_the_first_measured_round_with_its_bytes_and_seconds() -> None:
    run = reading.from_records("run", CONFIG, eight_rounds())
    assert run.reach(0.45) == quantities.Cost(0.5, 5, 750, 2.5)
    assert run.reach(0.71) is None
    assert run.cumulative_bytes.tolist() == [150 * number for number in range(1, 9)]
    assert run.cumulative_seconds[-1] == 4.0


def test_share_of_the_separate_chain_counts_only_rounds_that_chose() -> None:
    run = reading.from_records("run", CONFIG, eight_rounds())
    edges, shares = run.separate_share(3)
    assert edges.tolist() == [0, 3, 6, 8]
    np.testing.assert_allclose(shares, [2 / 3, 1 / 3, 0.0])
    np.testing.assert_allclose(run.separate_share_by_block, [1 / 4, 2 / 3])
    assert run.has_choice
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        run.separate_share(0)


def test_visits_are_the_stays_in_blocks() -> None:
    run = reading.from_records("run", CONFIG, eight_rounds()[:7])
    assert run.visits == (
        quantities.Visit(0, 0, 1, 2),
        quantities.Visit(0, 1, 3, 4),
        quantities.Visit(1, 0, 5, 6),
        quantities.Visit(1, 1, 7, 7),
    )


def test_rejections_and_quarantine_are_listed_with_their_round() -> None:
    entry = {"node": "77", "clients": [3, 4], "reason": "NaN in fc.weight"}
    rounds = [record(1, rejections=[entry], clients_rejected=2), record(2, quarantined=["77"])]
    run = reading.from_records("run", CONFIG, [*rounds, record(3, quarantined=["77"])])
    assert run.rejections == (quantities.RejectionRow(1, "77", (3, 4), "NaN in fc.weight"),)
    assert run.quarantined == {"77": 2}


def test_a_run_without_rounds_has_no_results() -> None:
    run = reading.from_records("run", CONFIG, [])
    assert (run.final, run.best, run.last_cycle, run.reach(0.1), run.visits, run.blocks) == (None,) * 4 + ((), 2)
    assert not run.has_choice
    assert run.separate_share(5)[1].tolist() == []


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


def test_compare_sorts_settings_into_shared_and_differing() -> None:
    configs: list[dict[str, object]] = [
        {"strategy": "fedavg", "seed": 0, "output": "a"},
        {"strategy": "mm-psgd", "seed": 0, "output": "b", "decay": 0.5},
    ]
    comparison = quantities.compare([reading.from_records(str(config["strategy"]), config, []) for config in configs])
    assert comparison.shared == {"seed": 0}
    assert comparison.differing == {"strategy": ("fedavg", "mm-psgd"), "decay": (None, 0.5)}
