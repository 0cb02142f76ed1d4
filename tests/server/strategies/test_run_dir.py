"""A run that a folder keeps: its files, going on from it to the bit, and what is refused."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from safetensors.numpy import load_file

from perennial import MCPSGD, MMPSGD, ClockSchedule, RoundSchedule, both_chains, load_predictor
from perennial.common.command.errors import InputError
from perennial.example import example_app, example_arrays
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.report import html, reading
from perennial.server.run.checkpoint import load_checkpoint
from perennial.server.run.lock import hold
from perennial.server.run.metrics import read_rows
from perennial.server.run.tree import first_difference
from perennial.server.strategies.base import BlockStrategy
from tests.server.strategies.players import Players, lr, model

KINDS = ["mm", "mc", "one message"]
SCHEDULE = RoundSchedule(["day", "night"], 3)
ROUNDS = 8


def make(kind: str) -> BlockStrategy:
    if kind == "mm":
        return MMPSGD(FedAvg(fraction_train=0.5, fraction_evaluate=0.5), schedule=SCHEDULE)
    adam = FedAdam(fraction_train=0.5, fraction_evaluate=0.5, eta=0.05)
    return MCPSGD(adam, schedule=SCHEDULE, separate_config=lr(0.03), one_message=kind == "one message")


def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    # A sum that draws: the generators are part of what goes on.
    return MetricRecord({"accuracy": float(np.tanh(abs(arrays["weight"].numpy()).sum())), "draw": random.random()})


def run(kind: str, folder: Path | str, rounds: int = ROUNDS, **options: Any) -> Any:
    grid = MemoryGrid(both_chains(example_app()))
    options = {"evaluate_fn": judge, **options}
    return make(kind).start(grid, example_arrays(), rounds, train_config=lr(0.1), run_dir=folder, **options)


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - the generator that Flower's strategies draw from


def bits(arrays: ArrayRecord) -> list[tuple[str, str, bytes]]:
    return [(name, str(array.numpy().dtype), array.numpy().tobytes()) for name, array in arrays.items()]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the rounds, without what no two runs share."""
    found = read_rows(folder / "metrics.jsonl")
    assert not found.damaged
    return [{key: one for key, one in row.items() if key not in ("seconds", "run", "crc")} for row in found.rows]


def assert_same_run(folder: Path, other: Path, rounds: int = ROUNDS) -> None:
    """Compare all that two folders keep of a run, but for the times that it took."""
    assert rows(folder) == rows(other)
    mine, theirs = (load_checkpoint(one / "checkpoint" / f"{rounds:08d}.json").tree for one in (folder, other))
    assert first_difference(mine, theirs) is None
    for name in ("block-0.safetensors", "block-1.safetensors"):
        assert (folder / "predictors" / name).read_bytes() == (other / "predictors" / name).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """The unbroken run of each kind, and its result."""
    found = {}
    for kind in KINDS:
        seed(1)
        folder = tmp_path_factory.mktemp("whole") / "run"
        found[kind] = (folder, run(kind, folder))
    return found


# --- Files ------------------------------------------------------------------------------------------------------------


def test_the_folder_has_the_files_of_a_run(whole: dict[str, tuple[Path, Any]]) -> None:
    folder, result = whole["mc"]
    assert {path.name for path in folder.iterdir()} == {
        ".lock", "checkpoint", "config.yaml", "initial.safetensors", "metrics.jsonl", "predictors", "versions"
    }  # fmt: skip
    assert {path.stem for path in (folder / "checkpoint").iterdir()} == {"00000007", "00000008"}
    initial = load_file(folder / "initial.safetensors")
    assert {name: one.tolist() for name, one in initial.items()} == {"weight": [0, 0, 0], "bias": 0}
    config = yaml.safe_load((folder / "config.yaml").read_text())
    expected = {
        "strategy": "mc-psgd", "inner": "flwr.serverapp.strategy.FedAdam", "blocks": 2, "rounds-per-block": 3,
        "block-names": ["day", "night"], "averaging": "exponential", "decay": 0.5, "train-config": {"lr": 0.1},
        "vote-weights": "examples", "one-message": False, "cycles": None,
    }  # fmt: skip
    assert expected.items() <= config.items()
    for block, name in enumerate(("day", "night")):
        published = load_file(folder / "predictors" / f"block-{block}.safetensors")
        assert {key: one.tobytes() for key, one in published.items()} == {
            key: one.numpy().tobytes() for key, one in result.predictors[name].items()
        }


def test_every_round_has_a_line_with_what_it_left(whole: dict[str, tuple[Path, Any]]) -> None:
    folder, result = whole["mc"]
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["server-round"] for row in found] == list(range(1, ROUNDS + 1))
    assert [row["block-name"] for row in found] == ["day"] * 3 + ["night"] * 3 + ["day"] * 2
    last = found[-1]
    assert last["folded"] == {"day": 5, "night": 3}
    assert last["chosen"] == min(("mixed", "separate"), key=lambda chain: last[f"loss-{chain}"])
    assert last["clients-asked"] == last["clients-answered"] == len(last["nodes"]) == 5
    assert last["train-loss-mixed"] == result.train_metrics_clientapp[ROUNDS]["train_loss"]
    assert last["server-metrics"] == dict(result.evaluate_metrics_serverapp[ROUNDS])
    assert last["bytes-down"] > last["bytes-up"] > 0
    # A predictor does not change while other blocks are trained: its last accuracy still holds.
    judged = {number: one["accuracy"] for number, one in result.evaluate_metrics_serverapp.items()}
    assert [row["accuracy"] for row in found[2:4]] == [[judged[3], None], [judged[3], judged[4]]]


def test_the_manifest_says_what_was_published(whole: dict[str, tuple[Path, Any]]) -> None:
    folder, result = whole["mm"]
    predictor = load_predictor(folder, block="night")
    manifest = predictor.manifest
    assert (manifest["strategy"], manifest["blocks"], manifest["folded"]) == ("mm-psgd", ["day", "night"], [5, 3])
    assert manifest["slot"]["server-round"] == ROUNDS
    assert manifest["schedule"] == {"blocks": 2, "rounds-per-block": 3, "cycles": None}
    assert manifest["scores"] == rows(folder)[-1]["accuracy"]
    assert {name: one.tobytes() for name, one in predictor.arrays.items()} == {
        name: one.numpy().tobytes() for name, one in result.predictors["night"].items()
    }


def test_a_run_by_the_clock_is_found_by_the_time(tmp_path: Path) -> None:
    schedule = ClockSchedule("all: 00:00-24:00", timezone="UTC")
    MMPSGD(schedule=schedule).start(Players().grid(), model(0), 2, run_dir=tmp_path)
    MMPSGD(schedule=schedule).start(Players().grid(), model(0), 3, run_dir=tmp_path)
    predictor = load_predictor(tmp_path)
    assert (predictor.block, predictor.manifest["folded"]) == ("all", [3])


def test_a_report_is_made_of_the_folder(whole: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    runs = [reading.read(folder, kind) for kind, (folder, _) in whole.items()]
    mc = runs[1]
    assert (len(mc.rounds), mc.block_names, mc.rounds.votes.sum()) == (ROUNDS, ("day", "night"), ROUNDS)
    assert np.isfinite(mc.rounds.mean_accuracy).all()
    assert np.isfinite(mc.rounds.train_loss_separate).all()
    page = html.write(tmp_path, runs, "Library").read_text()
    assert "one message" in page
    assert (tmp_path / "figures" / "accuracy-per-block.png").stat().st_size > 1000


def test_a_relative_folder_is_logged_and_used_as_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def wander(record: Any) -> None:
        os.chdir("/")

    with caplog.at_level(logging.INFO, "flwr"):
        MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 2, run_dir="runs/mine", on_round=wander)
    assert f"Run folder: {tmp_path / 'runs' / 'mine'}" in caplog.messages
    assert (tmp_path / "runs" / "mine" / "predictors" / "manifest.json").exists()


def test_metrics_that_json_has_no_word_for_are_null(tmp_path: Path) -> None:
    def odd(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": float("nan"), "parts": [1.0, float("inf")]})

    MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 1, evaluate_fn=odd, run_dir=tmp_path)
    (row,) = rows(tmp_path)
    assert row["server-metrics"] == {"accuracy": None, "parts": [1.0, None]}
    assert "accuracy" not in row


# --- Going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broken", [1, 3, 5])
def test_a_run_that_goes_on_ends_as_the_unbroken_one(
    kind: str, broken: int, whole: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, expected = whole[kind]
    seed(1)

    class Broken(Exception):
        pass

    def breaks(record: Any) -> None:
        if record.slot.server_round == broken:
            raise Broken

    with pytest.raises(Broken):
        run(kind, tmp_path, on_round=breaks)
    assert not (tmp_path / "predictors").exists()
    seed(99)
    result = run(kind, tmp_path)
    assert bits(result.arrays) == bits(expected.arrays)
    assert {name: bits(one) for name, one in result.predictors.items()} == {
        name: bits(one) for name, one in expected.predictors.items()
    }
    assert_same_run(tmp_path, folder)


# The n-th exchange of a run, and a round whose line and checkpoint are not yet written.
KILLED_IN_EXCHANGE = """
import os, signal, sys
from pathlib import Path
from perennial.server.link.memory_grid import MemoryGrid
from tests.server.strategies.test_run_dir import run, seed
kind, folder, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
send, count = MemoryGrid.send_and_receive, 0
def counted(self, messages, **options):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return send(self, messages, **options)
MemoryGrid.send_and_receive = counted
seed(1 if last else 99)
run(kind, folder)
"""


def in_a_process(kind: str, folder: Path, last: int) -> int:
    command = [sys.executable, "-c", KILLED_IN_EXCHANGE, kind, str(folder), str(last)]
    root = Path(__file__).resolve().parents[3]
    return subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False).returncode


@pytest.mark.parametrize(("kind", "exchange"), [("mm", 1), ("mm", 9), ("mc", 14), ("one message", 7)])
def test_a_killed_process_s_run_goes_on_to_the_bit(
    kind: str, exchange: int, whole: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    assert in_a_process(kind, tmp_path, exchange) == -signal.SIGKILL
    assert len(rows(tmp_path)) < ROUNDS
    assert in_a_process(kind, tmp_path, 0) == 0
    assert_same_run(tmp_path, whole[kind][0])


def test_a_run_that_is_done_returns_its_result_without_a_message(
    whole: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    folder, expected = tmp_path / "copy", whole["mc"][1]
    shutil.copytree(whole["mc"][0], folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    players = Players()
    grid = players.grid()
    result = make("mc").start(grid, example_arrays(), ROUNDS, train_config=lr(0.1), run_dir=folder)
    assert grid.sent == []
    assert bits(result.arrays) == bits(expected.arrays)
    assert sorted(result.predictors) == ["day", "night"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_that_is_done_may_get_more_rounds(whole: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    seed(1)
    run("mc", tmp_path, 5)
    # Every round is evaluated, and so published.
    assert load_predictor(tmp_path, block="day").version == 5
    seen = []
    # While it goes on, it has not ended, and what it published stays.
    run("mc", tmp_path, on_round=lambda _: seen.append((tmp_path / "predictors" / "manifest.json").exists()))
    assert seen == [True, False, False]
    newest = load_predictor(tmp_path, block="day")
    assert (newest.version, newest.manifest["slot"]["server-round"]) == (ROUNDS, ROUNDS)
    assert [load_predictor(tmp_path, block="day", version=one).manifest["slot"]["server-round"] for one in (6, 7)] == [
        6,
        7,
    ]
    assert_same_run(tmp_path, whole["mc"][0])


def test_a_run_that_stop_ends_has_its_predictors_and_may_go_on(
    whole: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    seed(1)
    run("mm", tmp_path, stop=lambda: True)
    assert load_predictor(tmp_path, block="day").manifest["folded"] == [1, 0]
    with pytest.raises(InputError, match="block night is not trained yet"):
        load_predictor(tmp_path, block="night")
    run("mm", tmp_path)
    assert_same_run(tmp_path, whole["mm"][0])


def test_predictors_that_were_lost_are_published_again(whole: dict[str, tuple[Path, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(whole["mm"][0], folder)
    (folder / "predictors" / "manifest.json").unlink()
    run("mm", folder)
    assert_same_run(folder, whole["mm"][0])


# --- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    MCPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 2, run_dir=tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: MMPSGD(schedule=SCHEDULE), "another strategy: its strategy is 'MCPSGD', not 'MMPSGD'"),
        (lambda: MCPSGD(schedule=RoundSchedule(["day", "dusk"], 3)), r"another schedule\.blocks\[1\]"),
        (lambda: MCPSGD(schedule=RoundSchedule(["day", "night"], 2)), r"another schedule\.rounds_per_block"),
        (lambda: MCPSGD(schedule=ClockSchedule("day: 08:00-20:00, night: 20:00-08:00")), "another schedule: "),
        (lambda: MCPSGD(schedule=SCHEDULE, decay=0.1), r"another settings\.decay"),
        (lambda: MCPSGD(FedAdam(), schedule=SCHEDULE), r"another strategy inside: .*\.FedAvg', not .*\.FedAdam'"),
    ],
)
def test_a_folder_of_another_run_is_refused_by_what_differs(begun: Path, other: Any, message: str) -> None:
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file() and path.name != ".lock"}
    players = Players()
    with pytest.raises(InputError, match=f"{begun} holds a run with {message}"):
        other().start(players.grid(), model(0), 4, run_dir=begun)
    assert players.heard == []
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("arrays", "place"),
    [
        ({"w": np.zeros(2, np.float32)}, r"model\.w: .*float32\[\].*float32\[2\]"),
        ({"w": np.zeros((), np.float64)}, r"model\.w: .*float32.*float64"),
        ({"v": np.zeros((), np.float32)}, "model: "),
    ],
)
def test_a_folder_of_another_model_is_refused(begun: Path, arrays: dict[str, Any], place: str) -> None:
    initial = ArrayRecord({name: Array(one) for name, one in arrays.items()})
    with pytest.raises(InputError, match=f"another {place}"):
        MCPSGD(schedule=SCHEDULE).start(Players().grid(), initial, 4, run_dir=begun)


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(InputError, match=f"{tmp_path} is held by process {os.getpid()}"):
        MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 1, run_dir=tmp_path)


def test_a_folder_is_held_while_a_run_goes_and_free_after_it_also_after_an_error(tmp_path: Path) -> None:
    def again(record: Any) -> None:
        MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 1, run_dir=tmp_path)

    with pytest.raises(InputError, match="is held by"):
        MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 1, run_dir=tmp_path, on_round=again)
    MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 1, run_dir=tmp_path)


def test_rounds_without_a_checkpoint_are_not_overwritten(begun: Path) -> None:
    shutil.rmtree(begun / "checkpoint")
    before = (begun / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="holds a run without its checkpoint"):
        MCPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 4, run_dir=begun)
    assert (begun / "metrics.jsonl").read_bytes() == before


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong, message in ((tmp_path / "file", "is no folder"), ("", "must be the path of a folder"), (3, "got 3")):
        with pytest.raises(InputError, match=message):
            MMPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 1, run_dir=wrong)  # type: ignore[arg-type]


class Unkept(FedAvg):
    def __init__(self) -> None:
        super().__init__()
        self.seen = {1, 2}


def test_a_strategy_whose_state_cannot_be_kept_is_refused_before_the_first_round(tmp_path: Path) -> None:
    players = Players()
    with pytest.raises(InputError, match=r"Unkept\.seen is a set"):
        MMPSGD(Unkept(), schedule=SCHEDULE).start(players.grid(), model(0), 1, run_dir=tmp_path)
    assert players.heard == []
