"""Registered devices that are broken or mean harm, and clocks that jump: what they cost a real server's run."""

from __future__ import annotations

import math
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import read_metrics, read_predictors
from tests.deploy.device import GREED, THROWN_ROUND
from tests.deploy.lab import CLIENTS, OUTSIDER, Lab, Process, laboratory, rows
from tests.deploy.scenes import DEVICE
from tests.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(1200)]
ROUNDS = 20
# The outsider's key is admitted too, and the run begins when all five are here.
EXPERIMENT: dict[str, object] = {
    "strategy": "mc-psgd", "model": "linear", "engine": "loop", "nodes": CLIENTS + 1, "cycles": 1,
    "rounds_per_block": ROUNDS // 2, "local_iterations": 5, "lr_mixed": 0.1, "lr_separate": 0.1, "seed": 3,
}  # fmt: skip
CLOCK = {**EXPERIMENT, "nodes": CLIENTS, "clock": "early: 00:00-12:00, late: 12:00-24:00", "eval_every": 1000}
del CLOCK["rounds_per_block"]
TWO_HOURS, HUNDRED_DAYS = 2 * 3600, 100 * 86400
# A round takes a second here; one that waits for a device that is not coming takes 600.
SECONDS = 30.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with laboratory(tmp_path_factory.mktemp("trust"), 4) as made:
        yield made


@pytest.fixture(scope="module")
def honest(lab: Lab) -> list[Process]:
    return [lab.client(number) for number in range(CLIENTS)]


def run_with(lab: Lab, behaviour: str, clients: str = "") -> tuple[Path, str]:
    """Run to the end beside an outsider of that behaviour; return the folder, and what the server said."""
    admit = ["--clients", clients] if clients else []
    lab.script("admit.sh", *admit, str(lab.state), str(lab.folder / f"{OUTSIDER}.key.pub"))
    outsider = lab.client(0, program=(DEVICE, behaviour), host=OUTSIDER)
    output = lab.folder / f"{behaviour}-{clients}"
    nodes = CLIENTS if clients else CLIENTS + 1
    server = lab.server(output, **{**EXPERIMENT, "nodes": nodes})
    try:
        assert server.wait(300) == 0, server.said()
    finally:
        outsider.end()
    return output, server.said()


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("greedy", "node error 2: RuntimeError: no"), ("huge", "the reply is refused: it has 100")],
)
def test_a_device_that_never_helps_sits_out_after_three_attempts(lab: Lab, behaviour: str, reason: str) -> None:
    output, said = run_with(lab, behaviour)
    done = read_metrics(output)
    assert [row["server-round"] for row in done] == list(range(1, ROUNDS + 1))
    # Where a quorum answers without it, a strike is a round; else it is an attempt at the first one.
    first_without = 2 if behaviour == "greedy" else 4
    assert {row["clients-asked"] for row in done[first_without - 1 : 10]} == {CLIENTS}
    assert {tuple(row["accepted"]) for row in done} == {tuple(range(CLIENTS))}
    assert f"the node of client {GREED[0]} sits out until round " in said
    assert reason in said


@pytest.mark.usefixtures("honest")
def test_one_update_of_1e30_counts_for_nothing_and_is_said(lab: Lab) -> None:
    output, said = run_with(lab, "thrown")
    row = read_metrics(output)[THROWN_ROUND - 1]
    (rejection,) = row["rejections"]
    assert rejection["clients"] == [GREED[0]]
    assert rejection["reason"].endswith("far outside, by max-update-norm auto")
    assert "far outside, by max-update-norm auto" in said
    assert all(np.abs(array).max() < 10 for arrays in read_predictors(output) for array in arrays.values())
    accuracy = read_metrics(output)[-1]["mean-accuracy"]
    assert accuracy > 0.5, accuracy


@pytest.mark.usefixtures("honest")
def test_a_key_that_is_for_one_client_claims_no_hundred(lab: Lab) -> None:
    output, said = run_with(lab, "greedy", str(GREED[0]))
    assert f"is refused: it claims client {GREED[1]}, and its key is for client {GREED[0]} alone" in said
    assert {(row["clients-asked"], row["clients-answered"]) for row in read_metrics(output)} == {(CLIENTS, CLIENTS)}


# --- Clocks -----------------------------------------------------------------------------------------------------------


class WallClock:
    """The wall clock of processes that are started with ``variables``."""

    def __init__(self, folder: Path) -> None:
        self._file, library = folder / "ahead", folder / "wall_clock.so"
        source = Path(__file__).with_name("wall_clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        self._file.write_bytes(bytes(8))
        self.variables = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(self._file)}

    def set(self, ahead: int) -> None:
        # In place: the processes have the file in their memory.
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", ahead))


def after(output: Path, server: Process, rounds: int) -> float:
    """Wait until so many more rounds are done; return the seconds that they took."""
    began, goal = time.monotonic(), len(rows(output)) + rounds
    wait_until(lambda: len(rows(output)) >= goal or not server.running(), 600, f"round {goal}\n{server.said()[-2000:]}")
    assert server.running(), server.said()[-2000:]
    return time.monotonic() - began


@pytest.mark.usefixtures("honest")
def test_a_clock_that_jumps_100_days_is_said_and_waited_out_and_ends_no_run(lab: Lab, tmp_path: Path) -> None:
    clock, output = WallClock(tmp_path), lab.folder / "jump"
    lab.variables = clock.variables
    server = lab.server(output, **CLOCK)
    lab.variables = {}
    after(output, server, 5)
    clock.set(HUNDRED_DAYS)
    after(output, server, 5)
    server.wait_for("this machine's clock jumped 100.0 days ahead")
    clock.set(0)
    server.wait_for("this machine's clock is right again")
    after(output, server, 5)
    assert server.end(signal.SIGINT) == 128 + signal.SIGINT
    assert not (output / "predictors" / "manifest.json").exists()
    assert {row["cycle"] for row in rows(output)} == {0}
    again = lab.server(output, "--resume", **CLOCK)
    after(output, again, 5)
    again.end(signal.SIGINT)
    assert [row["server-round"] for row in rows(output)] == list(range(1, len(rows(output)) + 1))


def test_all_clocks_two_hours_ahead_in_mid_round_cost_seconds(
    lab: Lab, honest: list[Process], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for process in honest:
        process.end()
    clock, output = WallClock(tmp_path), lab.folder / "ahead"
    lab.variables = clock.variables
    # One is slow, so that the jump falls into a round.
    devices = [lab.client(0, program=(DEVICE, "slow")), *map(lab.client, range(1, CLIENTS))]
    server = lab.server(output, **{**CLOCK, "min_replies": 1.0})
    lab.variables = {}
    after(output, server, 2)
    took = []
    for number in range(10):
        clock.set(TWO_HOURS if number % 2 == 0 else 0)
        took.append(after(output, server, 2))
    server.end(signal.SIGINT)
    for process in devices:
        process.end()
    honest[:] = [lab.client(number) for number in range(CLIENTS)]
    assert max(took) < SECONDS, took
    assert all(row["clients-answered"] == CLIENTS for row in rows(output))
    with capsys.disabled():
        print(f"\ntwo rounds after each of 10 jumps: {min(took):.1f} to {math.ceil(10 * max(took)) / 10:.1f} s")
