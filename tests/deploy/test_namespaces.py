"""Server and devices on hosts of their own, with TLS and node keys: agreement with the simulation, and all trouble."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from perennial.common.wire import link
from tests.conftest import read_metrics, read_predictors
from tests.deploy import scenes
from tests.deploy.device import COUNT_ROUND, FORGED_ROUND, LATE_ROUND, NAN_ROUND, SHAPE_ROUND
from tests.deploy.lab import CLIENT, CLIENTS, OUTSIDER, PORT, SERVER, Lab, Process, device, laboratory, rows
from tests.deploy.scenes import EXPERIMENT, KILLS, OUTAGE_ROUNDS, ROUNDS, Hostile, Interrupted, Outage
from tests.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """In a laboratory of its own, beside the other tests: it is a matter of waiting."""
    with laboratory(tmp_path_factory.mktemp("outage"), 2) as lab:
        scene = Outage(lab)
        thread = threading.Thread(target=scene.play, daemon=True)
        thread.start()
        yield scene
        thread.join(timeout=1800)


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
    return scenes.simulate(lab)


@pytest.fixture(scope="module")
def unbroken(lab: Lab, clients: list[Process]) -> Path:
    return scenes.deploy(lab, clients)


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


@pytest.fixture(scope="module")
def interrupted(lab: Lab, unbroken: Path) -> Interrupted:
    return scenes.interrupt(lab)


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
    connected, refused = "connected as node", "the server refuses this node"
    # A device is also refused while the server takes its last connection for alive, as after a kill.
    before = {text: clients[3].said().count(text) for text in (connected, refused)}
    lab.script("revoke.sh", str(lab.state), "device-3.key")
    wait_until(lambda: clients[3].said().count(refused) > before[refused], 120, "the revoked device to be refused")
    assert clients[3].said().count(connected) <= before[connected] + 1
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
    assert gate.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert clients[3].end(signal.SIGTERM) == 0
    return scenes.misbehave(lab)


def test_a_run_with_a_hostile_device_ends_with_all_rounds_and_predictors(hostile: Hostile, lab: Lab) -> None:
    assert [row["server-round"] for row in hostile.rows] == list(range(1, 9))
    for predictor in read_predictors(lab.folder / "hostile"):
        assert all(np.isfinite(array).all() for array in predictor.values())


@pytest.mark.parametrize(
    ("number", "words"),
    [(NAN_ROUND, "finite"), (SHAPE_ROUND, "(64, 63)"), (COUNT_ROUND, "num-clients"),
     (LATE_ROUND, "no reply in time"), (FORGED_ROUND, "lost the order 3 times|no reply in time")],
    ids=["nan", "wrong-shape", "too-many-clients", "after-the-deadline", "to-another-order"],
)  # fmt: skip
def test_a_bad_update_is_rejected_with_its_reason(hostile: Hostile, number: int, words: str) -> None:
    reasons = hostile.rejections(number)
    assert len(reasons) == 1
    assert any(word in reasons[0] for word in words.split("|"))


def test_what_honest_devices_send_is_never_rejected_beside_a_hostile_one(hostile: Hostile) -> None:
    # On a busy machine an honest device may miss the deadline; what it sends in time is good.
    found = [r for row in hostile.rows for r in row["rejections"] if r["reason"] != "no reply in time"]
    assert {client for rejection in found for client in rejection["clients"]} == {3}


def test_a_device_that_claims_anothers_client_is_refused(hostile: Hostile) -> None:
    assert "client 0 is hosted by another node" in hostile.said
    assert all(row["clients-asked"] == CLIENTS * row["attempts"] for row in hostile.rows)


def test_every_device_survived_all_servers(hostile: Hostile, clients: list[Process]) -> None:
    assert [client.running() for client in clients] == [True, True, True, False]
    for client in clients[:3]:
        assert client.end(signal.SIGINT) == 0


# --- Outages ----------------------------------------------------------------------------------------------------------


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
