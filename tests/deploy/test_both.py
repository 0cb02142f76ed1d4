"""Devices of ours and nodes of Flower's own fleet API in one run, behind one port; signatures of the latter, once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from perennial.client.link.connect import connect
from perennial.client.link.connection import Connection
from perennial.client.link.failures import Refused
from perennial.client.link.fleet_connection import FleetConnection
from perennial.client.node import Server as NodeServer
from perennial.common.command.config import RunConfig
from perennial.server.link.both import BothGrid, BothRegistries
from perennial.server.link.bundle import bundled
from perennial.server.link.fleet import Fleet, RunFacts
from perennial.server.link.fleet_run import FleetRun, open_run
from perennial.server.link.link import Link
from perennial.server.link.listener import Listener
from perennial.server.link.stock_gate import Once
from tests.deploy.fleet import make_tls, order, plus_one
from tests.processes import wait_until

ORDER_OF_P384 = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
)


class Both:
    def __init__(self, tls: Path, bundle: bytes) -> None:
        self.tls = tls
        self.run: FleetRun = open_run(
            {"cycles": 2}, keyed=True, bundle=bundle, cert=tls / "server.crt", stop=threading.Event()
        )
        self.listener = Listener(self.run.app, "127.0.0.1", 0, cert=tls / "server.crt", key=tls / "server.key")
        self.address = f"127.0.0.1:{self.listener.port}"
        self.made: list[NodeServer] = []

    @property
    def grid(self) -> BothGrid:
        assert isinstance(self.run.grid, BothGrid)
        return self.run.grid

    def connection(self, kind: type[Connection] | type[FleetConnection]) -> tuple[NodeServer, int]:
        key = generate_private_key(SECP384R1())
        self.registered = self.run.registry.register(key.public_key())
        self.made.append(kind(self.address, ca=self.tls / "ca.crt", key=key))
        return self.made[-1], self.made[-1].activate()


def test_a_key_is_for_the_same_clients_by_either_way() -> None:
    registry, claims = Link(), Fleet(RunFacts({}))
    both = BothRegistries(claims, registry)
    public = generate_private_key(SECP384R1()).public_key()
    node = both.register(public, frozenset({0, 1}))
    stock = both._stock[node]
    assert node != stock
    for one in (node, stock):
        assert claims.claim_problem(one, (0, 1)) == ""
        assert "it claims client 2" in claims.claim_problem(one, (2,))
    assert claims.claim_problem(stock + 1, (0,)) == "client 0 is for another key"
    # A list may change while the key stays.
    assert both.register(public, frozenset({2})) == node
    assert claims.claim_problem(stock, (2,)) == claims.claim_problem(stock + 1, (0,)) == ""
    both.revoke(node)
    assert claims.claim_problem(stock + 1, (2,)) == ""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return bundled(RunConfig(output="there"), tmp_path_factory.mktemp("bundle") / "app")


@pytest.fixture
def both(tls: Path, bundle: bytes) -> Iterator[Both]:
    made = Both(tls, bundle)
    made.listener.start()
    yield made
    for connection in made.made:
        connection.close(unregister=False)
    made.run.finish(False)
    made.listener.stop()


def answer(connection: NodeServer) -> None:
    announced: list[object] = []
    wait_until(lambda: announced.extend(filter(None, [connection.pull()])) or announced, 60, "an order")
    message, context = connection.fetch(announced[0], {})
    assert context.run_config["cycles"] == 2
    connection.push(plus_one(message, context), 0.1)


def test_both_kinds_of_nodes_take_part_in_one_round(both: Both) -> None:
    (ours, first), (stock, second) = both.connection(FleetConnection), both.connection(Connection)
    assert set(both.grid.get_node_ids()) == {first, second}
    threads = [threading.Thread(target=answer, args=(one,), daemon=True) for one in (ours, stock)]
    for thread in threads:
        thread.start()
    # Server and node are one process here; Flower notes the sender for the whole process.
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    sent = [order(second), order(first)]
    replies = list(both.grid.send_and_receive(sent, timeout=20))
    for thread in threads:
        thread.join(10)
    assert {reply.metadata.src_node_id for reply in replies} == {first, second}
    assert {float(reply.content["mixed"]["layer-4"].numpy()[0]) for reply in replies} == {5.0}
    by_node = {reply.metadata.src_node_id: reply.metadata.reply_to_message_id for reply in replies}
    assert by_node == {message.metadata.dst_node_id: message.metadata.message_id for message in sent}


@pytest.mark.parametrize("kind", [FleetConnection, Connection])
def test_a_revoked_key_is_out_by_either_way(both: Both, kind: type[Connection]) -> None:
    connection, _ = both.connection(kind)
    both.run.registry.revoke(both.registered)
    with pytest.raises(Refused) as refused:
        connection.pull()
    assert refused.value.gone


def test_silence_of_both_ends_with_the_timeout(both: Both) -> None:
    nodes = [both.connection(kind)[1] for kind in (FleetConnection, Connection)]
    assert list(both.grid.send_and_receive([order(node) for node in nodes], timeout=0.2)) == []


def test_a_client_of_ours_finds_its_way_to_either_kind_of_server(both: Both, tls: Path) -> None:
    key, link = generate_private_key(SECP384R1()), Link()
    node = link.register(key.public_key())
    stock = Listener(link.gated(keys_required=True), "127.0.0.1", 0, cert=tls / "server.crt", key=tls / "server.key")
    stock.start()
    try:
        for port, kind in ((both.listener.port, FleetConnection), (stock.port, Connection)):
            connection = connect(f"127.0.0.1:{port}", ca=tls / "ca.crt", key=key)
            assert isinstance(connection, kind)
            if kind is Connection:
                assert connection.activate() == node
            connection.close(unregister=False)
    finally:
        stock.stop()


def test_stock_nodes_are_served_only_if_that_is_asked_for(tls: Path) -> None:
    run = open_run({}, keyed=True, cert=None, stop=threading.Event())
    listener = Listener(run.app, "127.0.0.1", 0)
    listener.start()
    try:
        assert httpx.post(f"http://127.0.0.1:{listener.port}/v1/fleet/pull-messages").status_code == 404
    finally:
        run.finish(False)
        listener.stop()


# --- Signatures of stock nodes ----------------------------------------------------------------------------------------


def recorded(both: Both) -> tuple[Connection, list[httpx.Request]]:
    """Return a stock node, and what is recorded of its requests."""
    connection, _ = both.connection(Connection)
    assert isinstance(connection, Connection)
    requests: list[httpx.Request] = []
    connection._client._client.event_hooks["request"].append(requests.append)
    return connection, requests


def replay(both: Both, request: httpx.Request, path: str, **headers: str) -> int:
    import ssl

    verify = ssl.create_default_context(cafile=str(both.tls / "ca.crt"))
    with httpx.Client(verify=verify) as client:
        url = f"https://{both.address}{path}"
        sent = {**request.headers, **headers}
        return client.post(url, headers=sent, content=request.content).status_code


def test_a_signature_is_taken_once_on_whatever_route(both: Both) -> None:
    connection, requests = recorded(both)
    connection.heartbeat()
    (beat,) = requests
    for path in (beat.url.path, "/v1/fleet/deactivate-node", "/v1/fleet/pull-messages"):
        assert replay(both, beat, path) == 401
    connection.heartbeat()


def test_the_second_signature_that_anybody_can_make_of_one_is_not_taken(both: Both) -> None:
    from base64 import b64decode, b64encode

    from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER

    connection, requests = recorded(both)
    connection.heartbeat()
    (beat,) = requests
    r, s = decode_dss_signature(b64decode(beat.headers[FLEET_HTTP_SIGNATURE_HEADER]))
    twin = b64encode(encode_dss_signature(r, ORDER_OF_P384 - s)).decode()
    assert replay(both, beat, beat.url.path, **{FLEET_HTTP_SIGNATURE_HEADER: twin}) == 401


@pytest.mark.parametrize("header", ["", "x", "2024-01-01T00:00:00+00:00", "2024-01-01T00:00:00", "9" * 5000])
def test_a_head_that_proves_nothing_is_refused(both: Both, header: str) -> None:
    from flwr.common.constant import TIMESTAMP_HEADER

    connection, requests = recorded(both)
    connection.heartbeat()
    assert replay(both, requests[0], requests[0].url.path, **{TIMESTAMP_HEADER: header}) in (400, 401)


def test_what_was_used_is_forgotten_with_its_time() -> None:
    once = Once(10.0)
    assert [once.use("a", now) for now in (0, 5, 9)] == [True, False, False]
    assert once.use("a", 11)
    assert len(once._used) == 1
