"""The server's side without a network: keys, the public application, parts in one request, and the grid."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from common.errors import InputError
from common.flower141 import batch
from common.flower141.fleet import Fleet, Refused, Unreachable
from common.flower141.link import Link, LinkRun
from common.flower141.routes import Doorbell
from server.forward import Forward
from server.grid import EagerGrid, Stopped
from server.keys import KeyFolder
from server.listener import Gate, Listener, is_open


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def run(link: Link) -> Iterator[LinkRun]:
    started = link.start_run({"strategy": "mc-psgd", "cycles": 2})
    yield started
    started.finish(completed=False)


@pytest.fixture
def listener(link: Link) -> Iterator[Listener]:
    served = Listener(link.app(keys_required=True), "127.0.0.1", 0)
    served.start()
    yield served
    served.stop()


def key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP384R1())


def order(node: int, *, size: int = 1000) -> Message:
    # Server and node are one process here; Flower notes the sender for the whole process.
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    arrays = ArrayRecord({f"layer-{i}": Array(np.full(size, i, np.float32)) for i in range(5)})
    return Message(RecordDict({"mixed": arrays, "order": ConfigRecord({"round": 1})}), node, "train", ttl=60)


Connect = Callable[..., Fleet]


@pytest.fixture
def connect(listener: Listener) -> Iterator[Connect]:
    """Connections that are closed in the end."""
    made: list[Fleet] = []

    def connected(private: EllipticCurvePrivateKey | None, port: int = 0) -> Fleet:
        made.append(Fleet(f"127.0.0.1:{port or listener.port}", ca=None, key=private))
        return made[-1]

    yield connected
    for fleet in made:
        fleet.close(unregister=False)


class Device:
    """A node that adds one to every array."""

    def __init__(self, link: Link, connect: Connect) -> None:
        private = key()
        self.node = link.register(private.public_key())
        self.fleet = connect(private)
        assert self.fleet.activate() == self.node

    def answer(self) -> None:
        announced = self.fleet.pull()
        assert announced is not None
        message, context = self.fleet.fetch(announced, {"data": "here"})
        assert context.run_config["cycles"] == 2
        assert context.node_config == {"data": "here"}
        arrays = {name: Array(array.numpy() + 1) for name, array in message.content["mixed"].items()}
        self.fleet.push(Message(RecordDict({"mixed": ArrayRecord(arrays)}), reply_to=message), 0.1)


def test_a_model_travels_to_a_node_and_back(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    thread = threading.Thread(target=device.answer, daemon=True)
    thread.start()
    (reply,) = EagerGrid(run.grid).send_and_receive([order(device.node)], timeout=20)
    thread.join(10)
    assert float(reply.content["mixed"]["layer-4"].numpy()[0]) == 5.0
    assert reply.metadata.src_node_id == device.node


@pytest.mark.parametrize("waits", [True, False], ids=["in-one-request", "part-by-part"])
def test_nothing_is_left_of_a_message_that_was_answered(
    link: Link, run: LinkRun, connect: Connect, waits: bool
) -> None:
    device = Device(link, connect)
    device.fleet.waits = waits
    grid = EagerGrid(run.grid, forget=run.grid.forget)
    for _ in range(3):
        message = order(device.node)
        (sent,) = grid.push_messages([message])
        device.answer()
        assert len(list(grid.pull_messages([sent]))) == 1
    assert len(link.state.object_store) == 0  # type: ignore[arg-type]
    assert link.state.num_message_ins() == link.state.num_message_res() == 0


def test_nothing_is_left_of_an_order_that_nobody_fetched(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    grid = EagerGrid(run.grid, forget=run.grid.forget)
    assert list(grid.send_and_receive([order(device.node)], timeout=0.1)) == []
    assert len(link.state.object_store) == 0  # type: ignore[arg-type]
    assert link.state.num_message_ins() == 0


def test_a_reply_that_is_still_being_sent_is_not_waited_for(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(link, connect)
    grid = run.grid
    (sent,) = grid.push_messages([order(device.node)])
    monkeypatch.setattr(device.fleet, "_push_parts", lambda *_: None)
    device.answer()
    assert list(grid.pull_messages([sent])) == []
    grid.forget([sent])
    assert len(link.state.object_store) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("announced", [False, True], ids=["training", "sending"])
@pytest.mark.parametrize("returns", [False, True], ids=["stays-away", "returns"])
def test_an_order_is_lost_when_its_node_goes_offline(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch, announced: bool, returns: bool
) -> None:
    device = Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    monkeypatch.setattr(device.fleet, "_push_parts", lambda *_: None)
    if announced:
        device.answer()
    assert list(run.grid.pull_messages([sent])) == []
    link.state.deactivate_node(device.node)
    if returns:
        device.fleet.activate()
    (reply,) = wait_for_reply(run, sent)
    assert reply.error.code == 5
    assert reply.metadata.reply_to_message_id == sent
    assert len(link.state.object_store) == 0  # type: ignore[arg-type]


def test_an_order_to_a_node_that_is_offline_already_is_lost_at_once(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    link.state.deactivate_node(device.node)
    (sent,) = run.grid.push_messages([order(device.node)])
    (reply,) = wait_for_reply(run, sent)
    assert reply.error.code == 5


def wait_for_reply(run: LinkRun, sent: str) -> list[Message]:
    deadline = time.monotonic() + 10
    while not (replies := list(run.grid.pull_messages([sent]))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return replies


def test_a_late_reply_is_dropped(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    grid = EagerGrid(run.grid, forget=run.grid.forget)
    (sent,) = grid.push_messages([order(device.node)])
    announced = device.fleet.pull()
    assert announced is not None
    message, _ = device.fleet.fetch(announced, {})
    run.grid.forget([sent])
    device.fleet.push(Message(RecordDict(), reply_to=message), 0.1)
    assert len(link.state.object_store) == 0  # type: ignore[arg-type]


def test_a_stop_abandons_the_round_that_waits(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    stop = threading.Event()
    grid = EagerGrid(run.grid, stop=stop)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(Stopped):
        grid.send_and_receive([order(device.node)], timeout=30)


def test_an_unknown_key_is_refused(connect: Connect) -> None:
    with pytest.raises(Refused, match="Failed to activate") as refused:
        connect(key()).activate()
    assert not refused.value.gone


def test_a_node_without_a_key_cannot_register_itself(connect: Connect) -> None:
    with pytest.raises(Refused):
        connect(None).activate()


def test_a_revoked_node_is_unknown_at_its_next_question(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    link.revoke(device.node)
    for question in (device.fleet.heartbeat, device.fleet.pull):
        with pytest.raises(Refused) as refused:
            question()
        assert refused.value.gone


def test_a_reply_in_another_nodes_name_is_refused(link: Link, run: LinkRun, connect: Connect) -> None:
    victim, thief = Device(link, connect), Device(link, connect)
    run.grid.push_messages([order(victim.node)])
    announced = victim.fleet.pull()
    assert announced is not None
    message, _ = victim.fleet.fetch(announced, {})
    reply = Message(RecordDict(), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = victim.node
    with pytest.raises(Refused, match="403"):
        thief.fleet.push(reply, 0.1)


def test_a_reply_that_is_no_message_is_an_error_and_not_the_end(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    announced = device.fleet.pull()
    assert announced is not None
    message, _ = device.fleet.fetch(announced, {})
    reply = Message(RecordDict(), reply_to=message)
    # Its root is a record, under a true hash.
    root = RecordDict({"config": ConfigRecord({"a": 1})})
    reply.metadata.__dict__["_message_id"] = root.object_id
    request = PushMessagesRequest(
        node=device.fleet._node,
        messages_list=[message_to_proto(reply)],
        message_object_trees=[get_object_tree(root)],
        clientapp_runtime_list=[0.1],
    )
    session = device.fleet._client.PushMessages(request).session_id
    parts = ((object_id, part.deflate()) for object_id, part in get_all_nested_objects(root).items())
    device.fleet._push_parts(message.metadata.run_id, session, parts)
    (error,) = wait_for_reply(run, sent)
    assert error.error.reason == "the reply cannot be read"
    assert len(link.state.object_store) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs", "/"])
def test_the_public_port_knows_the_fleet_api_alone(listener: Listener, path: str) -> None:
    assert httpx.post(f"http://127.0.0.1:{listener.port}{path}").status_code == 404


@pytest.mark.parametrize("path", [batch.WAIT, batch.PULL, batch.PUSH, "/v1/fleet/pull-messages"])
def test_every_route_wants_a_signature(listener: Listener, path: str) -> None:
    head = batch.pack([(batch.NOBODY, b"")]) if path == batch.PUSH else b""
    headers = {"content-type": "application/protobuf"}
    assert httpx.post(f"http://127.0.0.1:{listener.port}{path}", content=head, headers=headers).status_code == 401


def test_garbage_is_no_row_of_parts(listener: Listener) -> None:
    assert httpx.post(f"http://127.0.0.1:{listener.port}{batch.PUSH}", content=b"garbage").status_code == 400


def test_a_server_that_is_away_is_unreachable(connect: Connect) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(Unreachable):
        connect(key(), port).activate()


# --- Parts ------------------------------------------------------------------------------------------------------------


def test_parts_come_back_as_they_were_packed() -> None:
    parts = [("ab" * 32, b"one"), ("cd" * 32, b""), (batch.NOBODY, b"x" * 1000)]
    assert list(batch.unpack(batch.pack(parts))) == parts


@pytest.mark.parametrize("cut", [1, 39, 41, 42])
def test_a_body_that_is_cut_off_is_an_error(cut: int) -> None:
    body = batch.pack([("ab" * 32, b"one")])
    with pytest.raises(ValueError, match="cut off"):
        list(batch.unpack(body[:cut]))


def test_parts_are_split_into_bodies_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_BYTES", 10)
    parts = [("ab" * 32, b"x" * size) for size in (4, 6, 1, 11, 2)]
    assert [[len(content) for _, content in some] for some in batch.split(parts)] == [[4, 6], [1], [11], [2]]


# --- The doorbell -----------------------------------------------------------------------------------------------------


def test_a_ring_from_another_thread_wakes_the_request_that_waits() -> None:
    async def waits() -> bool:
        bell = Doorbell()
        event = bell.expect(7)
        threading.Timer(0.05, bell.ring, [7]).start()
        threading.Timer(0.0, bell.ring, [8]).start()
        await asyncio.wait_for(event.wait(), 5)
        bell.forget(7, event)
        return not bell._waiting

    assert asyncio.run(waits())


# --- Keys -------------------------------------------------------------------------------------------------------------


class Registry:
    def __init__(self) -> None:
        self.nodes: set[int] = set()

    def register(self, key: object) -> int:
        self.nodes.add(len(self.nodes) + 1)
        return len(self.nodes)

    def revoke(self, node_id: int) -> None:
        self.nodes.remove(node_id)


def new_key(path: Path, kind: str = "ecdsa") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)


def test_a_key_file_admits_and_its_removal_revokes(tmp_path: Path) -> None:
    registry = Registry()
    keys = KeyFolder(tmp_path, registry)
    new_key(tmp_path / "a")
    keys.look()
    assert registry.nodes == {1}
    (tmp_path / "a.pub").rename(tmp_path / "renamed.pub")
    keys.look()
    assert registry.nodes == {1}
    (tmp_path / "renamed.pub").unlink()
    keys.look()
    assert registry.nodes == set()


@pytest.mark.parametrize("kind", ["ed25519", "text", "binary"])
def test_a_file_that_is_no_ecdsa_key_admits_nobody(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    if kind == "ed25519":
        new_key(tmp_path / "a", kind)
    else:
        (tmp_path / "a.pub").write_bytes(b"hello world\n" if kind == "text" else bytes(range(128, 256)))
    keys = KeyFolder(tmp_path, registry := Registry())
    keys.look()
    keys.look()
    assert registry.nodes == set()
    assert len(caplog.records) == (kind != "binary")


def test_a_revoked_key_stays_out_until_the_server_restarts(link: Link) -> None:
    public = key().public_key()
    link.revoke(link.register(public))
    with pytest.raises(ValueError, match="revoked"):
        link.register(public)


# --- Doors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/v1/fleet/pull-messages", "/v1/fleet/perennial/wait"])
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
    door = Listener(Forward(f"http://127.0.0.1:{listener.port}", None), "127.0.0.1", 0)
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
