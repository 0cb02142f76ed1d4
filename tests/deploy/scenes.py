"""What is played on the hosts of a laboratory: one experiment unbroken, killed and resumed, hostile, and cut off."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.device import LATE_SECONDS
from tests.deploy.lab import CLIENTS, OUTSIDER, Lab, Process, device, rows
from tests.processes import environment, wait_until

DEVICE = str(Path(__file__).with_name("device.py"))
ROUNDS = 20
# One experiment, deployed and simulated. A round that lacks a client is repeated, so every run has the same cohorts.
EXPERIMENT: dict[str, object] = {
    "strategy": "mc-psgd",
    "nodes": CLIENTS,
    "cycles": 2,
    "rounds_per_block": 5,
    "local_iterations": 5,
    "min_replies": 1.0,
    "seed": 3,
    "engine": "loop",
}
KILLS = 5
# Of a round with a hostile device. Much longer than a round takes: what a busy device sends must be told from silence.
HOSTILE_SECONDS = 10.0
assert HOSTILE_SECONDS < LATE_SECONDS
CUT_SECONDS = 90.0
# Of the outage: long enough that both devices are back before the end. A slow device makes a round last.
OUTAGE_ROUNDS = 160


def simulate(lab: Lab) -> Path:
    """Run the experiment in simulation, in a process of its own; return its folder."""
    output, file = lab.folder / "simulated", lab.folder / "experiment.yaml"
    keys = {key.replace("_", "-"): value for key, value in EXPERIMENT.items()}
    keys |= {"data": str(lab.folder / "shards" / "all"), "output": str(output)}
    file.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "perennial.simulation.cli", "run", str(file)]
    log = lab.folder / "simulated.log"
    with log.open("wb") as written:
        done = subprocess.run(command, cwd=lab.folder, env=environment(), stdout=written, stderr=written, timeout=600)
    assert done.returncode == 0, log.read_text()
    return output


def deploy(lab: Lab, clients: list[Process]) -> Path:
    """Run the experiment with devices that were there first and waited for the server; return its folder."""
    for client in clients:
        client.wait_for("the server cannot be reached")
    output = lab.folder / "unbroken"
    server = lab.server(output, **EXPERIMENT)
    assert server.wait(600) == 0, server.said()
    return output


@dataclass
class Interrupted:
    """A run that was interrupted and resumed again and again."""

    output: Path
    exits: list[int] = field(default_factory=list)
    rounds_at_exit: list[int] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)


def interrupt(lab: Lab) -> Interrupted:
    """One Ctrl-C, then five kill -9 at random instants, then the end."""
    run = Interrupted(lab.folder / "interrupted")
    rng = random.Random(7)
    # Early enough for the last kill to come before the end.
    moments = sorted(rng.sample(range(1, ROUNDS - 6), KILLS + 1))
    for number, moment in zip([signal.SIGINT] + [signal.SIGKILL] * KILLS, moments, strict=True):
        server = lab.server(run.output, "--resume", **EXPERIMENT)
        wait_until(lambda at=moment: len(rows(run.output)) >= at, 600, f"round {moment}\n{server.said()[-2000:]}")
        time.sleep(rng.uniform(0, 0.3))
        run.exits.append(server.end(number))
        run.rounds_at_exit.append(len(rows(run.output)))
        run.last_words.append(server.said())
    server = lab.server(run.output, "--resume", **EXPERIMENT)
    run.exits.append(server.wait(600))
    return run


@dataclass(frozen=True)
class Hostile:
    """The rows of a run with a hostile device, and what its server said."""

    rows: list[dict[str, Any]]
    said: str

    def rejections(self, number: int) -> list[str]:
        """Return why the hostile device was rejected in round ``number``."""
        found = [row for row in self.rows if row["server-round"] == number]
        return [rejection["reason"] for rejection in found[0]["rejections"] if rejection["clients"] == [3]]


def misbehave(lab: Lab) -> Hostile:
    """A run in which device 3 does something else every round, and a fifth device claims client 0."""
    output = lab.folder / "hostile"
    settings = {**EXPERIMENT, "rounds_per_block": 2, "min_replies": 0.5, "round_timeout": HOSTILE_SECONDS}
    server = lab.server(output, **settings, quarantine_after=0)
    server.wait_for("3 of 4 are here")
    impostor = lab.client(1, program=(DEVICE, "impostor"), host=OUTSIDER)
    server.wait_for("client 0 is hosted by another node")
    bad = lab.client(3, program=(DEVICE, "hostile"))
    code = server.wait(600)
    assert code == 0, server.said()
    bad.end()
    impostor.end()
    return Hostile(rows(output), server.said())


@dataclass
class Outage:
    """One device is killed and restarted, another one loses its link for 90 s, while a run goes on."""

    lab: Lab
    output: Path = field(init=False)
    finished: threading.Event = field(default_factory=threading.Event)
    code: int = -1
    rounds: dict[str, int] = field(default_factory=dict)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.output = self.lab.folder / "outage"

    def play(self) -> None:
        try:
            self._play()
        except BaseException as error:  # Raised again where the test waits.
            self.error = error
        finally:
            self.finished.set()

    def _play(self) -> None:
        lab = self.lab
        devices = [lab.client(0, program=(DEVICE, "slow")), *(lab.client(number) for number in range(1, CLIENTS))]
        settings = {**EXPERIMENT, "rounds_per_block": OUTAGE_ROUNDS // 4, "min_replies": 0.5}
        server = lab.server(self.output, **settings)
        self._wait_for_round(3)
        cut_at = time.monotonic()
        lab.network.cut(device(1))
        devices[2].end(signal.SIGKILL)
        self.rounds["trouble"] = len(rows(self.output))
        devices[2] = lab.client(2)
        devices[2].wait_for("connected as node", 600)
        self.rounds["restarted"] = len(rows(self.output))
        # However long the restart took, some rounds are between it and the other device's return.
        self._wait_for_round(self.rounds["restarted"] + 5)
        time.sleep(max(0.0, cut_at + CUT_SECONDS - time.monotonic()))
        lab.network.mend(device(1))
        self.rounds["mended"] = len(rows(self.output))
        self.code = server.wait(600)

    def _wait_for_round(self, number: int) -> None:
        wait_until(lambda: len(rows(self.output)) >= number, 600, f"round {number} of {self.output}")

    def rows(self) -> list[dict[str, Any]]:
        assert self.finished.wait(1800)
        if self.error:
            raise self.error
        return rows(self.output)

    def rejected(self, client: int) -> list[tuple[int, str]]:
        return [
            (row["server-round"], rejection["reason"])
            for row in self.rows()
            for rejection in row["rejections"]
            if rejection["clients"] == [client]
        ]
