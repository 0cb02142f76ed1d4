"""TLS by records: what is written arrives, whoever is slow is waited for, and every end is an end."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perennial.server.link.tls import begin_tls
from tests.deploy.fleet import make_tls
from tests.processes import wait_until

LARGE = bytes(range(256)) * 8192


class Noting(asyncio.Protocol):
    """Keeps what happens; answers each request line by ``answer``."""

    def __init__(self, answer: Callable[[Noting, bytes], None] = lambda self, data: None) -> None:
        self.answer, self.received = answer, bytearray()
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.answer(self, data)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class Serving:
    """An event loop in a thread, and connections to it over the loopback."""

    def __init__(self, folder: Path) -> None:
        self.server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_tls.load_cert_chain(folder / "server.crt", folder / "server.key")
        self.client_tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self.loop = asyncio.new_event_loop()
        self.failures: list[BaseException] = []
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._sockets: list[socket.socket] = []
        self._protocols: list[Noting] = []

    def raw(self, protocol: Noting, seconds: float = 5.0) -> socket.socket:
        """Return the client's end of a connection before its handshake."""
        listening = socket.create_server(("127.0.0.1", 0))
        client = socket.socket()
        client.settimeout(10)
        # So that little is on its way.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        listening.close()
        accepted.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            accepted.setsockopt(socket.SOL_SOCKET, option, 2**14)
        begun = begin_tls(accepted, self.server_tls, lambda: protocol, handshake_seconds=seconds, shutdown_seconds=0.5)
        asyncio.run_coroutine_threadsafe(begun, self.loop).add_done_callback(
            lambda done: self.failures.append(error) if (error := done.exception()) else None
        )
        self._sockets.append(client)
        self._protocols.append(protocol)
        return client

    def client(self, protocol: Noting) -> ssl.SSLSocket:
        found = self.client_tls.wrap_socket(self.raw(protocol), server_hostname="server.example")
        self._sockets.append(found)
        wait_until(lambda: protocol.transport is not None, 5, "the handshake")
        return found

    def do(self, action: Callable[[], object]) -> None:
        async def done() -> None:
            action()

        asyncio.run_coroutine_threadsafe(done(), self.loop).result(10)

    def close(self) -> None:
        begun = [protocol for protocol in self._protocols if protocol.transport]
        self.do(lambda: [protocol.transport.abort() for protocol in begun])
        wait_until(lambda: all("lost" in protocol.events for protocol in begun), 5, "all to be lost")
        for one in self._sockets:
            one.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serving(folder: Path) -> Iterator[Serving]:
    made = Serving(folder)
    yield made
    made.close()


def read_all(client: ssl.SSLSocket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (data := client.recv(2**16)):
        found += data
    return bytes(found)


def test_what_is_larger_than_all_buffers_arrives_both_ways(serving: Serving) -> None:
    protocol = Noting()
    client = serving.client(protocol)
    client.sendall(LARGE)
    wait_until(lambda: len(protocol.received) == len(LARGE), 10, "all bytes")
    assert protocol.received == LARGE
    serving.do(
        lambda: [protocol.transport.write(memoryview(LARGE)[at : at + 50_000]) for at in range(0, 2**21, 50_000)]
    )
    assert read_all(client, len(LARGE)) == LARGE


def test_a_reader_that_is_slow_pauses_the_writer(serving: Serving) -> None:
    protocol = Noting()
    client = serving.client(protocol)
    serving.do(lambda: protocol.transport.set_write_buffer_limits(high=1000))
    serving.do(lambda: protocol.transport.write(LARGE))
    assert protocol.events == ["pause"]
    assert protocol.transport.get_write_buffer_size() > 1000
    assert read_all(client, len(LARGE)) == LARGE
    wait_until(lambda: protocol.events == ["pause", "resume"], 5, "the writer to go on")


def test_a_writer_whose_reader_pauses_waits(serving: Serving) -> None:
    protocol = Noting(lambda self, data: self.transport.pause_reading())
    client = serving.client(protocol)
    sender = threading.Thread(target=client.sendall, args=(LARGE,))
    sender.start()
    wait_until(lambda: bool(protocol.received), 5, "the first bytes")
    sender.join(0.1)
    assert sender.is_alive()
    # No more than a record for each time that it is let read.
    assert len(protocol.received) <= 2**14
    protocol.answer = lambda self, data: None
    serving.do(protocol.transport.resume_reading)
    sender.join(10)
    wait_until(lambda: protocol.received == LARGE, 10, "all bytes")


def test_what_was_written_before_the_end_arrives_and_then_the_goodbye(serving: Serving) -> None:
    protocol = Noting()
    client = serving.client(protocol)
    some = LARGE[: 2**18]
    serving.do(lambda: (protocol.transport.write(some), protocol.transport.close(), protocol.transport.write(b"late")))
    assert protocol.transport.is_closing()
    # No error: the other end has said goodbye.
    client.suppress_ragged_eofs = False
    assert read_all(client, len(some) + 1) == some
    client.unwrap()
    wait_until(lambda: "lost" in protocol.events, 5, "the end")


def test_who_says_no_goodbye_is_left_after_a_while_and_what_it_sends_is_not_heard(serving: Serving) -> None:
    protocol = Noting()
    client = serving.client(protocol)
    serving.do(protocol.transport.close)
    client.sendall(b"more")
    wait_until(lambda: "lost" in protocol.events, 5, "the end")
    assert not protocol.received


@pytest.mark.parametrize("end", ["unwrap", "close"])
def test_an_end_of_the_other_side_is_an_end(serving: Serving, end: str) -> None:
    protocol = Noting()
    client = serving.client(protocol)
    # A goodbye is answered; a connection that is just closed cannot be.
    getattr(client, end)()
    wait_until(lambda: "lost" in protocol.events, 5, "the end")
    assert protocol.events == ["eof", "lost"]


def test_an_abort_is_an_end_at_once_and_tells_once(serving: Serving) -> None:
    protocol = Noting()
    serving.client(protocol)
    serving.do(lambda: (protocol.transport.write(LARGE), protocol.transport.abort(), protocol.transport.close()))
    wait_until(lambda: "lost" in protocol.events, 5, "the end")
    assert [event for event in protocol.events if event != "pause"] == ["lost"]
    assert protocol.transport.get_write_buffer_size() == 0


def test_bytes_that_are_no_record_are_an_end(serving: Serving) -> None:
    protocol = Noting()
    client = serving.client(protocol)
    with socket.socket(fileno=client.detach()) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: "lost" in protocol.events, 5, "the end")
    assert not protocol.received


def test_a_protocol_that_fails_loses_its_connection(serving: Serving) -> None:
    def fails(self: Noting, data: bytes) -> None:
        raise ZeroDivisionError

    protocol = Noting(fails)
    serving.client(protocol).sendall(b"x")
    wait_until(lambda: "lost" in protocol.events, 5, "the end")


@pytest.mark.parametrize(("sent", "failure"), [(b"", TimeoutError), (b"GET / HTTP/1.1\r\n\r\n", ssl.SSLError)])
def test_who_begins_no_tls_is_not_served(serving: Serving, sent: bytes, failure: type[Exception]) -> None:
    protocol = Noting()
    client = serving.raw(protocol, seconds=0.1)
    client.sendall(sent)
    wait_until(lambda: bool(serving.failures), 5, "the end")
    assert isinstance(serving.failures[0], failure)
    assert protocol.transport is None
