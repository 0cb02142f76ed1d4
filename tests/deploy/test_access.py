"""Who may speak to the server, and about what: keys, signatures, and the doors of the public port."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest

from perennial.client.link.failures import Refused, Unreachable
from perennial.common.command.errors import InputError
from perennial.server.link.forward import Forward
from perennial.server.link.gate import Gate, is_open
from perennial.server.link.link import Link, LinkRun
from perennial.server.link.listener import Listener
from tests.deploy.conftest import Connect, Device, key, nothing_left, order


def test_an_unknown_key_is_refused(connect: Connect) -> None:
    with pytest.raises(Refused, match="403") as refused:
        connect(key()).activate()
    assert not refused.value.gone


def test_a_node_without_a_key_cannot_register_itself(connect: Connect) -> None:
    with pytest.raises(Refused):
        connect(None).activate()


def test_a_revoked_node_is_unknown_at_its_next_question(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    link.revoke(device.node)
    for question in (device.connection.heartbeat, device.connection.pull):
        with pytest.raises(Refused) as refused:
            question()
        assert refused.value.gone


def test_a_reply_in_another_nodes_name_is_refused(link: Link, run: LinkRun, connect: Connect) -> None:
    victim, thief = Device(link, connect), Device(link, connect)
    run.grid.push_messages([order(victim.node)])
    message, _ = victim.fetched()
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = victim.node
    with pytest.raises(Refused, match="403"):
        thief.connection.push(reply, 0.1)


def test_a_push_without_a_reply_or_its_parts_is_refused(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    with pytest.raises(httpx.HTTPStatusError, match="400"):
        device.connection._client.PushMessages(PushMessagesRequest(node=device.connection._node))
    assert nothing_left(link)


def test_a_reply_whose_announcement_is_large_is_refused(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    message, _ = device.fetched()
    with pytest.raises(Refused, match="413"):
        device.connection.push(Message(Error(2, "x" * 2**21), reply_to=message), 0.1)
    run.grid.forget([sent])
    assert nothing_left(link)


@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs", "/"])
def test_the_public_port_knows_the_fleet_api_alone(listener: Listener, path: str) -> None:
    assert httpx.post(f"http://127.0.0.1:{listener.port}{path}").status_code == 404


@pytest.mark.parametrize("path", ["pull-messages", "push-messages", "push-object", "activate-node"])
def test_every_route_wants_a_signature(listener: Listener, path: str) -> None:
    """A body that is garbage is refused for its sender, not for itself: nobody has looked at it."""
    headers = {"content-type": "application/protobuf"}
    url = f"http://127.0.0.1:{listener.port}/v1/fleet/{path}"
    assert httpx.post(url, content=b"garbage", headers=headers).status_code == 401


def test_a_server_that_is_away_is_unreachable(connect: Connect) -> None:
    # Held, so that nobody else listens on it meanwhile: a port that is bound without a listener refuses.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable):
            connect(key(), held.getsockname()[1]).activate()


def test_a_revoked_key_stays_out_until_the_server_restarts(link: Link) -> None:
    public = key().public_key()
    link.revoke(link.register(public))
    with pytest.raises(ValueError, match="revoked"):
        link.register(public)


# --- Doors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/v1/fleet/pull-messages", "/v1/fleet/activate-node"])
def test_the_gate_is_open_for_the_fleet(path: str) -> None:
    assert is_open(path)


@pytest.mark.parametrize(
    "path",
    ["/", "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/../control/start-run", "/v1/fleet",
     "/v1/fleet//x", "/v1/fleet/%2e%2e/control", "//v1/fleet/x", "/health/", "/V1/fleet/x"],
)  # fmt: skip
def test_the_gate_is_shut_for_the_rest(path: str) -> None:
    assert not is_open(path)


def test_the_door_passes_requests_of_the_fleet_on(link: Link, listener: Listener, connect: Connect) -> None:
    private = key()
    node = link.register(private.public_key())
    door = Listener(Gate(Forward(f"http://127.0.0.1:{listener.port}", None)), "127.0.0.1", 0)
    door.start()
    try:
        assert connect(private, door.port).activate() == node
        assert httpx.post(f"http://127.0.0.1:{door.port}/v1/control/list-runs").status_code == 404
    finally:
        door.stop()


def test_a_request_that_is_too_long_is_not_read() -> None:
    async def application(scope: object, receive: object, send: object) -> None:
        raise AssertionError("reached")

    answers: list[int] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        answers.append(message.get("status", 0))

    scope = {"type": "http", "path": "/v1/fleet/x", "headers": [(b"content-length", b"11")]}
    asyncio.run(Gate(application, 10)(scope, None, send))  # type: ignore[arg-type]
    assert answers[0] == 413


def test_a_taken_port_is_an_error_of_the_operator(listener: Listener) -> None:
    async def application(scope: object, receive: object, send: object) -> None:
        return None

    with pytest.raises(InputError, match="--port"):
        Listener(application, "127.0.0.1", listener.port)
