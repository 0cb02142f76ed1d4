"""What strangers can do to the public port: they are bounded, timed, and gone; and nobody else notices."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perennial.common.wire import link
from perennial.server.link import door, guarded, listener
from tests.deploy.fleet import Server, make_tls, order, plus_one, served
from tests.processes import wait_until


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(tls: Path) -> Iterator[Server]:
    with served(tls) as made:
        yield made


@pytest.fixture
def dial(server: Server) -> Iterator[Callable[..., socket.socket]]:
    """Connections of strangers, closed in the end."""
    made: list[socket.socket] = []
    context = ssl.create_default_context(cafile=str(server.tls / "ca.crt"))

    def dialled(*, secure: bool = True) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", server.listener.port), 10)
        made.append(context.wrap_socket(sock, server_hostname="127.0.0.1") if secure else sock)
        made[-1].settimeout(10)
        return made[-1]

    yield dialled
    for sock in made:
        sock.close()


Dial = Callable[..., socket.socket]


def is_ended(sock: socket.socket) -> bool:
    """Wait for the other end to hang up, one way or another."""
    try:
        while sock.recv(2**16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def ask(sock: socket.socket, request: bytes) -> tuple[int, bytes, bytes]:
    """Return status, head and body of the answer; nothing if the other end hangs up."""
    sock.sendall(request)
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if end and len(body) >= (int(length[1]) if length else 0):
            return int(head.split(b" ", 2)[1]), head, body
        if not (more := sock.recv(2**16)):
            return 0, b"", b""
        received += more


def status(sock: socket.socket, request: bytes) -> int:
    return ask(sock, request)[0]


def hangs_up_on(sock: socket.socket, piece: bytes, times: int, pause: float = 0.0) -> int:
    """Send the same again and again until the other end has hung up; return how many times that was."""
    for number in range(times):
        try:
            sock.sendall(piece)
        except OSError:
            return number
        time.sleep(pause)
    return times


def test_a_connection_that_says_nothing_is_closed(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_HEAD_SECONDS", 0.2)
    assert is_ended(dial())


def test_a_handshake_that_does_not_come_is_given_up(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HANDSHAKE_SECONDS", 0.2)
    assert is_ended(dial(secure=False))


@pytest.mark.parametrize("drop", [b"x-slow: 1\r\n", b"\r\n"], ids=["header-by-header", "empty-lines"])
def test_a_head_that_comes_slowly_is_cut_off(dial: Dial, monkeypatch: pytest.MonkeyPatch, drop: bytes) -> None:
    monkeypatch.setattr(guarded, "_HEAD_SECONDS", 0.3)
    sock = dial()
    if drop != b"\r\n":
        sock.sendall(b"GET /health HTTP/1.1\r\n")
    assert hangs_up_on(sock, drop, 200, 0.02) < 150


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nx: " + b"a" * 2**20,
        b"GET /health HTTP/1.1\r\n" + b"x: 1\r\n" * 50_000,
        b"GET /" + b"a" * 2**20,
        b"GET /health HTTP/1.1\r\nx: " + b"a" * 9000 + b"\r\n\r\n",
    ],
    ids=["one-line", "many-lines", "route", "complete"],
)
def test_a_head_that_is_too_long_is_not_read(dial: Dial, head: bytes) -> None:
    sock = dial()
    with contextlib.suppress(OSError):  # It may hang up while this is still being sent.
        assert status(sock, head) == 400
    assert is_ended(sock)


def test_a_stranger_is_shown_out_after_a_wrong_request(dial: Dial) -> None:
    sock = dial()
    assert status(sock, b"GET /v1/control/start-run HTTP/1.1\r\nhost: x\r\n\r\n") == 404
    assert is_ended(sock)


def test_a_stranger_asks_a_few_times_only(dial: Dial) -> None:
    sock, answers = dial(), 0
    request = f"GET {link.GREET} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    with contextlib.suppress(OSError):
        while answers < 100 and status(sock, request) == 200:
            answers += 1
    assert 2 <= answers <= 8


def test_requests_that_do_not_wait_for_their_answers_are_not_collected(dial: Dial, server: Server) -> None:
    assert hangs_up_on(dial(), b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 1000, 100, 0.01) < 100


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01" + b"\xff" * 1000, b"GET / HTTP/1.1\r\n\r\n", os.urandom(1000)])
def test_what_is_no_tls_gets_no_answer(dial: Dial, garbage: bytes) -> None:
    sock = dial(secure=False)
    sock.sendall(garbage)
    assert is_ended(sock)


@pytest.mark.parametrize(
    "garbage", [b"\0" * 100, b"POST\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http_is_a_bad_request(dial: Dial, garbage: bytes) -> None:
    sock = dial()
    assert status(sock, garbage) == 400
    assert is_ended(sock)


def test_a_body_of_a_stranger_is_not_read(dial: Dial, server: Server) -> None:
    sock = dial()
    head = f"POST {link.REPLY}x HTTP/1.1\r\nhost: x\r\ncontent-length: {60 * 2**20}\r\n\r\n"
    assert status(sock, head.encode()) == 401
    # What is read is what was on its way.
    assert hangs_up_on(sock, b"x" * 2**16, 16 * 60) < 16 * 60


def test_half_closed_connections_are_closed(dial: Dial, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_HEAD_SECONDS", 0.2)
    sock = dial()
    sock.shutdown(socket.SHUT_WR)
    assert is_ended(sock)
    wait_until(lambda: not server.listener._server.server_state.connections, 10, "the connection to be gone")


def test_strangers_at_all_places_keep_no_device_out(
    dial: Dial, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_AT_ONCE_OF_ONE", 10)
    monkeypatch.setattr(guarded, "_HEAD_SECONDS", 0.5)
    monkeypatch.setattr(listener, "_HANDSHAKE_SECONDS", 0.5)
    for _ in range(40):
        dial(secure=False)
    connection = server.connection()
    (sent,) = server.grid.push_messages([order(connection.activate())])
    announced = connection.pull()
    assert announced
    message, context = connection.fetch(announced, {})
    connection.push(plus_one(message, context), 0.1)
    assert len(list(server.grid.pull_messages([sent]))) == 1


def test_a_known_device_is_not_counted_as_a_stranger(server: Server) -> None:
    connection = server.connection()
    connection.activate()
    inside = server.listener._server._door
    assert (inside.count, inside._strangers.total) == (1, 0)
    connection.close(unregister=False)
    wait_until(lambda: inside.count == 0, 10, "nobody to be counted")


PROGRAM = """
import resource, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from pathlib import Path
from tests.deploy.fleet import Server
server = Server(Path(sys.argv[1]))
server.listener.start()
print(server.listener.port, flush=True)
sys.stdin.readline()
"""


def test_more_connections_than_files_keep_nobody_out_for_long(tls: Path) -> None:
    """1,100 connections at a limit of 1,024 files; in a process of its own, whose limit it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tls)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdin
        port = int(process.stdout.readline())
        strangers = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(1100)]
        try:
            refused = sum(hung_up(sock) for sock in strangers)
            assert refused > 600
            context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
            for sock in strangers[:100]:
                sock.close()
            with socket.create_connection(("127.0.0.1", port), 30) as plain:
                plain.settimeout(30)
                with context.wrap_socket(plain, server_hostname="127.0.0.1") as sock:
                    assert status(sock, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") == 200
        finally:
            for sock in strangers:
                sock.close()
            process.stdin.write("\n")
            process.stdin.close()
        assert process.stderr
        assert len(process.stderr.read()) < 2000


def hung_up(sock: socket.socket) -> bool:
    sock.settimeout(0.01)
    try:
        return not sock.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def test_the_answers_give_nothing_away(dial: Dial) -> None:
    _, head, body = ask(dial(), f"GET {link.GREET} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    assert set(json.loads(body)) == {"link", "challenge"}
    assert not re.search(rb"(?i)server:|uvicorn|python", head)
