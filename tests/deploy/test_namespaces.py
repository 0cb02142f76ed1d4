"""Server and devices on hosts of their own, with TLS and node keys: agreement with the simulation, and all trouble."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.common.wire import link
from tests.conftest import read_metrics, read_predictors
from tests.deploy.device import COUNT_ROUND, FORGED_ROUND, LATE_ROUND, NAN_ROUND, SHAPE_ROUND
from tests.deploy.lab import (
    CLIENT,
    CLIENTS,
    IMPOSSIBLE,
    OUTSIDER,
    PORT,
    SERVER,
    Lab,
    Process,
    device,
    laboratory,
    rows,
)
from tests.processes import environment, wait_until

pytestmark = [pytest.mark.skipif(bool(IMPOSSIBLE), reason=IMPOSSIBLE), pytest.mark.timeout(600)]

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
# The rows of a run, and what its server said.
Hostile = tuple[list[dict[str, Any]], str]
CUT_SECONDS = 90.0
# Of the outage: long enough that both devices are back before the end. A slow device makes a round last.
OUTAGE_ROUNDS = 160


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """In a laboratory of its own, beside the other tests: it is a matter of waiting."""
    with laboratory(tmp_path_factory.mktemp("outage"), 2) as lab:
        scene = Outage(lab)
        thread = threading.Thread(target=scene.play, daemon=True)
        thread.start()
        yield scene
        thread.join(timeout=300)


@pytest.fixture(scope="module")
def lab(outage: Outage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with laboratory(tmp_path_factory.mktemp("lab"), 1) as made:
        yield made


@pytest.fixture(scope="module")
def clients(lab: Lab) -> list[Process]:
    """Four devices that outlive every server of these tests."""
    return [lab.client(number) for number in range(CLIENTS)]


@pytest.fixture(scope="module")
def simulated(lab: Lab) -> Path:
    """The experiment in simulation, in a process of its own."""
    output, file = lab.folder / "simulated", lab.folder / "experiment.yaml"
    keys = {key.replace("_", "-"): value for key, value in EXPERIMENT.items()}
    keys |= {"data": str(lab.folder / "shards" / "all"), "output": str(output)}
    file.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    command = [sys.executable, "-m", "perennial.simulation.cli", "run", str(file)]
    log = lab.folder / "simulated.log"
    with log.open("wb") as written:
        done = subprocess.run(command, cwd=lab.folder, env=environment(), stdout=written, stderr=written, timeout=300)
    assert done.returncode == 0, log.read_text()
    return output


@pytest.fixture(scope="module")
def unbroken(lab: Lab, clients: list[Process]) -> Path:
    """The experiment, deployed; the devices were there first and waited for the server."""
    for client in clients:
        client.wait_for("the server cannot be reached")
    output = lab.folder / "unbroken"
    server = lab.server(output, **EXPERIMENT)
    assert server.wait(240) == 0, server.said()
    return output


# --- Agreement --------------------------------------------------------------------------------------------------------


def test_deployed_predictors_agree_with_the_simulation(unbroken: Path, simulated: Path) -> None:
    for deployed, expected in zip(read_predictors(unbroken), read_predictors(simulated), strict=True):
        assert deployed.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(deployed[name], expected[name], atol=1e-5, rtol=0)


def test_deployed_metrics_are_those_of_the_simulation(unbroken: Path, simulated: Path) -> None:
    kept = ("server-round", "cycle", "block", "chosen", "clients-answered", "bytes-up", "bytes-down", "mean-accuracy")
    deployed, expected = ([{k: row.get(k) for k in kept} for row in read_metrics(run)] for run in (unbroken, simulated))
    assert len(deployed) == ROUNDS
    assert deployed == expected


# --- The server stops, or is killed -----------------------------------------------------------------------------------


@dataclass
class Interrupted:
    """A run that was interrupted and resumed again and again."""

    output: Path
    exits: list[int] = field(default_factory=list)
    rounds_at_exit: list[int] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def interrupted(lab: Lab, unbroken: Path) -> Interrupted:
    """One Ctrl-C, then five kill -9 at random instants, then the end."""
    run = Interrupted(lab.folder / "interrupted")
    rng = random.Random(7)
    # Early enough for the last kill to come before the end.
    moments = sorted(rng.sample(range(1, ROUNDS - 6), KILLS + 1))
    for number, moment in zip([signal.SIGINT] + [signal.SIGKILL] * KILLS, moments, strict=True):
        server = lab.server(run.output, "--resume", **EXPERIMENT)
        wait_until(lambda at=moment: len(rows(run.output)) >= at, 240, f"round {moment}\n{server.said()[-2000:]}")
        time.sleep(rng.uniform(0, 0.3))
        run.exits.append(server.end(number))
        run.rounds_at_exit.append(len(rows(run.output)))
        run.last_words.append(server.said())
    server = lab.server(run.output, "--resume", **EXPERIMENT)
    run.exits.append(server.wait(200))
    return run


def test_ctrl_c_ends_the_server_and_says_how_to_go_on(interrupted: Interrupted) -> None:
    assert interrupted.exits[0] == 128 + signal.SIGINT
    assert "--resume" in interrupted.last_words[0].splitlines()[-1]


def test_five_kills_of_the_server_fall_in_the_middle_of_the_run(interrupted: Interrupted) -> None:
    assert interrupted.exits[1:] == [-signal.SIGKILL] * KILLS + [0]
    assert all(0 < done < ROUNDS for done in interrupted.rounds_at_exit)


def test_a_run_that_was_killed_five_times_ends_bit_for_bit_like_an_unbroken_one(
    interrupted: Interrupted, unbroken: Path
) -> None:
    for resumed, expected in zip(read_predictors(interrupted.output), read_predictors(unbroken), strict=True):
        for name in expected:
            np.testing.assert_array_equal(resumed[name], expected[name])
    assert [row["server-round"] for row in rows(interrupted.output)] == list(range(1, ROUNDS + 1))


# --- The gate ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gate(lab: Lab, interrupted: Interrupted, clients: list[Process]) -> Process:
    """A server that waits for more nodes than there are."""
    server = lab.server(lab.folder / "gate", **{**EXPERIMENT, "nodes": 99})
    server.wait_for("listening on")
    return server


def test_only_the_link_answers_from_another_host(lab: Lab, gate: Process) -> None:
    assert status(lab, "GET", "/health") == 200
    for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/docs"):
        assert status(lab, "POST", path) == 404, path
    # Flower's own fleet API is for those who ask for it.
    assert status(lab, "POST", "/v1/fleet/pull-messages") == 404
    # The link is there, and asks who it is.
    for path in (link.SESSION, link.WAIT, link.BEAT, link.LEAVE, f"{link.REPLY}x"):
        assert status(lab, "POST", path) == 401, path


def test_the_server_listens_on_one_port(lab: Lab, gate: Process) -> None:
    tables = lab.run(SERVER, "cat", "/proc/net/tcp", "/proc/net/tcp6")
    listening = {int(line.split()[1].rpartition(":")[2], 16) for line in tables.splitlines() if " 0A " in line}
    assert listening == {PORT}


def test_a_client_without_a_registered_key_is_refused(lab: Lab, gate: Process) -> None:
    stranger = lab.client(0, host=OUTSIDER)
    stranger.wait_for("the server refuses this node")
    assert "connected as node" not in stranger.said()
    assert stranger.end(signal.SIGTERM) == 0


def test_a_plain_http_client_gets_no_answer(lab: Lab, gate: Process) -> None:
    plain = lab.start(
        OUTSIDER,
        [*CLIENT, "--server", f"{lab.address}:{PORT}", "--data", str(lab.folder / "shards" / device(0)),
         "--insecure-anywhere"],
    )  # fmt: skip
    plain.wait_for("the server cannot be reached")
    assert "WITHOUT TLS" in plain.said()
    assert "connected as node" not in plain.said()
    plain.end()


def test_a_revoked_key_is_refused_and_a_new_one_admitted_at_once(
    lab: Lab, gate: Process, clients: list[Process]
) -> None:
    before = clients[3].said().count("connected as node")
    lab.script("revoke.sh", str(lab.state), "device-3.key")
    wait_until(lambda: "the server refuses this node" in clients[3].said(), 60, "the revoked device to be refused")
    assert clients[3].said().count("connected as node") <= before + 1
    lab.script("admit.sh", str(lab.state), str(lab.folder / "outsider.key.pub"))
    gate.wait_for("outsider.key.pub may connect")
    guest = lab.client(0, host=OUTSIDER)
    guest.wait_for("connected as node")
    assert guest.end(signal.SIGTERM) == 0
    # The next server may know device 3 again.
    lab.script("admit.sh", str(lab.state), str(lab.folder / "device-3.key.pub"))


def status(lab: Lab, method: str, path: str) -> int:
    """Return the HTTP status that a host without a key gets."""
    code = (
        "import ssl, sys, httpx\n"
        "method, url, ca = sys.argv[1:]\n"
        "headers = {'content-type': 'application/protobuf'}\n"
        "verify = ssl.create_default_context(cafile=ca)\n"
        "print(httpx.request(method, url, verify=verify, headers=headers).status_code)"
    )
    url = f"https://{lab.address}:{PORT}{path}"
    return int(lab.run(OUTSIDER, sys.executable, "-c", code, method, url, str(lab.folder / "tls" / "ca.crt")))


# --- Hostile devices --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(lab: Lab, gate: Process, clients: list[Process]) -> Hostile:
    """A run in which device 3 does something else every round, and a fifth device claims client 0."""
    assert gate.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert clients[3].end(signal.SIGTERM) == 0
    output = lab.folder / "hostile"
    settings = {**EXPERIMENT, "rounds_per_block": 2, "min_replies": 0.5, "round_timeout": 4, "quarantine_after": 0}
    server = lab.server(output, **settings)
    server.wait_for("3 of 4 are here")
    impostor = lab.client(1, program=(DEVICE, "impostor"), host=OUTSIDER)
    server.wait_for("client 0 is hosted by another node")
    bad = lab.client(3, program=(DEVICE, "hostile"))
    code = server.wait(240)
    assert code == 0, server.said()
    bad.end()
    impostor.end()
    return rows(output), server.said()


def rejections(rows: list[dict[str, Any]], number: int) -> list[str]:
    found = [row for row in rows if row["server-round"] == number]
    return [rejection["reason"] for rejection in found[0]["rejections"] if rejection["clients"] == [3]]


def test_a_run_with_a_hostile_device_ends_with_all_rounds_and_predictors(hostile: Hostile, lab: Lab) -> None:
    assert [row["server-round"] for row in hostile[0]] == list(range(1, 9))
    for predictor in read_predictors(lab.folder / "hostile"):
        assert all(np.isfinite(array).all() for array in predictor.values())


@pytest.mark.parametrize(
    ("number", "words"),
    [(NAN_ROUND, "finite"), (SHAPE_ROUND, "(64, 63)"), (COUNT_ROUND, "num-clients"),
     (LATE_ROUND, "no reply in time"), (FORGED_ROUND, "lost the order 3 times|no reply in time")],
    ids=["nan", "wrong-shape", "too-many-clients", "after-the-deadline", "to-another-order"],
)  # fmt: skip
def test_a_bad_update_is_rejected_with_its_reason(hostile: Hostile, number: int, words: str) -> None:
    reasons = rejections(hostile[0], number)
    assert len(reasons) == 1
    assert any(word in reasons[0] for word in words.split("|"))


def test_what_honest_devices_send_is_never_rejected_beside_a_hostile_one(hostile: Hostile) -> None:
    # On a busy machine an honest device may miss the deadline; what it sends in time is good.
    found = [r for row in hostile[0] for r in row["rejections"] if r["reason"] != "no reply in time"]
    assert {client for rejection in found for client in rejection["clients"]} == {3}


def test_a_device_that_claims_anothers_client_is_refused(hostile: Hostile) -> None:
    assert "client 0 is hosted by another node" in hostile[1]
    assert all(row["clients-asked"] == CLIENTS * row["attempts"] for row in hostile[0])


def test_every_device_survived_all_servers(hostile: Hostile, clients: list[Process]) -> None:
    assert [client.running() for client in clients] == [True, True, True, False]
    for client in clients[:3]:
        assert client.end(signal.SIGINT) == 0


# --- Outages ----------------------------------------------------------------------------------------------------------


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
        wait_until(lambda: len(rows(self.output)) >= 3, 240, server.said()[-2000:])
        cut_at = time.monotonic()
        lab.network.cut(device(1))
        devices[2].end(signal.SIGKILL)
        self.rounds["trouble"] = len(rows(self.output))
        devices[2] = lab.client(2)
        devices[2].wait_for("connected as node", 120)
        self.rounds["restarted"] = len(rows(self.output))
        time.sleep(max(0.0, cut_at + CUT_SECONDS - time.monotonic()))
        lab.network.mend(device(1))
        self.rounds["mended"] = len(rows(self.output))
        self.code = server.wait(300)

    def rows(self) -> list[dict[str, Any]]:
        assert self.finished.wait(500)
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


def test_a_run_with_outages_ends_with_all_rounds(outage: Outage) -> None:
    assert [row["server-round"] for row in outage.rows()] == list(range(1, OUTAGE_ROUNDS + 1))
    assert outage.code == 0
    assert len(read_predictors(outage.output)) == 2


@pytest.mark.parametrize("client", [1, 2], ids=["link-cut", "killed"])
def test_a_device_that_drops_out_is_rejected_with_a_reason(outage: Outage, client: int) -> None:
    rejected = outage.rejected(client)
    # One that is killed and back within a moment is handed its order again, and misses nothing.
    assert rejected or client == 2
    assert all(outage.rounds["trouble"] <= number and reason for number, reason in rejected)


def test_a_device_that_is_killed_and_restarted_takes_part_again(outage: Outage) -> None:
    after = [row for row in outage.rows() if row["server-round"] > outage.rounds["restarted"] + 2]
    assert max(row["clients-answered"] for row in after if row["server-round"] <= outage.rounds["mended"]) == 3


def test_a_device_takes_part_again_after_its_link_was_cut_for_90_seconds(outage: Outage) -> None:
    after = [row for row in outage.rows() if row["server-round"] > outage.rounds["mended"]]
    assert after[-1]["clients-answered"] == CLIENTS
    assert outage.rounds["mended"] < OUTAGE_ROUNDS - 10
