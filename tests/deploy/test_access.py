"""Who may speak to the server, and about what: keys, signatures, and the doors of the public port."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest

from perennial.client.link.failures import Refused, Unreachable
from perennial.common.command.errors import InputError
from perennial.common.wire import parts
from perennial.server.link.forward import Forward
from perennial.server.link.key_folder import KeyFolder
from perennial.server.link.link import Link, LinkRun
from perennial.server.link.listener import Gate, Listener, is_open
from tests.deploy.conftest import Connect, Device, key, nothing_left, order
from tests.processes import wait_until


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


@pytest.mark.parametrize("path", [parts.WAIT, parts.PULL, parts.PUSH, "/v1/fleet/pull-messages"])
def test_every_route_wants_a_signature(listener: Listener, path: str) -> None:
    head = parts.pack([(parts.NOBODY, b"")]) if path == parts.PUSH else b""
    headers = {"content-type": "application/protobuf"}
    assert httpx.post(f"http://127.0.0.1:{listener.port}{path}", content=head, headers=headers).status_code == 401


def test_a_server_that_is_away_is_unreachable(connect: Connect) -> None:
    # Held, so that nobody else listens on it meanwhile: a port that is bound without a listener refuses.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable):
            connect(key(), held.getsockname()[1]).activate()


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


def test_a_file_that_cannot_be_read_for_a_moment_revokes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    new_key(tmp_path / "a")
    monkeypatch.setattr("perennial.server.link.key_folder._SECONDS_BETWEEN_LOOKS", 0.01)
    keys = KeyFolder(tmp_path, registry)
    keys.start()
    broken = OSError(24, "Too many open files")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: (_ for _ in ()).throw(broken))
        wait_until(lambda: "Too many open files" in caplog.text, 60, "a warning")
    assert registry.nodes == {1}
    (tmp_path / "a.pub").unlink()
    wait_until(lambda: not registry.nodes, 60, "the watch to go on")
    keys.stop()


def test_files_that_cannot_be_read_are_named_once_and_again_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        new_key(tmp_path / name)
    keys = KeyFolder(tmp_path, Registry())
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
            for _ in range(3):
                keys.look()
        keys.look()
    warned = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert [text.split(".pub")[0][-1] for text in warned] == ["a", "b", "a", "b"]


def test_a_folder_that_is_gone_for_a_moment_revokes_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "nodes"
    folder.mkdir()
    new_key(folder / "a")
    keys = KeyFolder(folder, registry := Registry())
    keys.look()
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        keys.look()
    assert registry.nodes == {1}


def test_one_file_that_cannot_be_read_keeps_no_other_from_being_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        new_key(tmp_path / name)
    keys = KeyFolder(tmp_path, registry := Registry())
    keys.look()
    assert registry.nodes == {1, 2}
    (tmp_path / "b.pub").unlink()
    read = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "a.pub":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    keys.look()
    assert registry.nodes == {1}


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
