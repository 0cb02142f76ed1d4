"""What strangers try against a flower-server: each attack goes on until its time is over.

An attack returns one line that says what came of it. Attackers come from addresses of their own on loopback.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

from perennial.common.wire import link

BODY = 60 * 2**20
_PIECE = b"\n\x00" * 2**15
_ATTACKER = "127.0.0.66"
SECONDS = 5.0
ROUTES = 20_000


@dataclass
class Target:
    """A server under attack. recorded: route and ``authorization`` of requests of one of its own devices."""

    port: int
    ca: Path
    recorded: list[tuple[str, str]] = field(default_factory=list)

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    def dial(self, *, tls: bool = True, number: int = 0) -> socket.socket:
        """Return a connection. number: other attackers have other addresses."""
        source = (f"127.0.{number % 250 + 1}.66" if number else _ATTACKER, 0)
        sock = socket.create_connection(("127.0.0.1", self.port), SECONDS, source_address=source)
        return self.tls.wrap_socket(sock, server_hostname="127.0.0.1") if tls else sock

    def ask(self, head: str, *, body: Iterable[bytes] = ()) -> tuple[str, int]:
        """Return the status of the answer ('': none, the server hung up), and how many bytes of the body were sent."""
        sent = 0
        try:
            with contextlib.closing(self.dial()) as sock:
                sock.sendall(f"{head}\r\nhost: x\r\n\r\n".encode("latin-1"))
                try:
                    for piece in body:
                        sock.sendall(piece)
                        sent += len(piece)
                except OSError:
                    pass
                answer = sock.recv(1024).split(b" ", 2)
                return answer[1].decode("latin-1") if len(answer) > 1 else "", sent
        except OSError:
            return "", sent


Attack = Callable[[Target, float], str]


def run(name: str, target: Target, seconds: float) -> str:
    """Attack as a process of its own that leaves the cores to the others: attackers have machines of their own."""
    os.nice(10)
    return STRANGERS[name](target, time.monotonic() + seconds)


def large_bodies(target: Target, until: float) -> str:
    """Three at a time send 60 MiB of empty protobuf items without a key, again and again."""
    got, sent = Counter[str](), [0]

    def send() -> None:
        while time.monotonic() < until:
            for path in ("/v1/fleet/push-messages", link.SESSION, f"{link.REPLY}x"):
                head = f"POST {path} HTTP/1.1\r\ncontent-length: {BODY}"
                status, size = target.ask(head, body=[_PIECE] * (BODY // len(_PIECE)))
                got[status] += 1
                sent[0] += size
            time.sleep(0.1)

    _together([send] * 3)
    return f"{said(got)}; of {got.total() * BODY / 2**20:,.0f} MiB announced, {sent[0] / 2**20:.1f} MiB were taken off"


def held_bodies(target: Target, until: float) -> str:
    """Twenty announce 60 MiB, send a little, and hold the connection."""
    head = f"POST {link.REPLY}x HTTP/1.1\r\nhost: x\r\ncontent-length: {BODY}\r\n\r\n".encode()
    return _held(target, until, 20, lambda sock, _: sock.sendall(head + b"\n\x00" * 500))


def long_header(target: Target, until: float) -> str:
    """One header line of 160 MiB."""
    sent = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError), contextlib.closing(target.dial()) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nx: ")
            for _ in range(160 * 2**20 // len(_PIECE)):
                sock.sendall(b"x" * len(_PIECE))
                sent += len(_PIECE)
        time.sleep(0.1)
    return f"hung up on; {sent / 2**20:.1f} MiB were taken off"


def idle_connections(target: Target, until: float) -> str:
    """Two hundred TLS connections that say nothing."""
    return _held(target, until, 200, lambda *_: None)


def slow_headers(target: Target, until: float) -> str:
    """A hundred heads that come a header at a time."""
    return _held(target, until, 100, lambda sock, _: sock.sendall(b"x-slow: 1\r\n"), first=b"GET / HTTP/1.1\r\n")


def half_closed(target: Target, until: float) -> str:
    """A hundred TLS connections whose end says that it has no more to say, and stays."""

    def shut(sock: ssl.SSLSocket, turn: int) -> None:
        if turn == 0:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            socket.socket.shutdown(sock, socket.SHUT_WR)

    return _held(target, until, 100, shut)


def garbage(target: Target, until: float) -> str:
    """What is no TLS, what is no HTTP, and HTTP that is wrong."""
    got = Counter[str]()
    wrong = ["GET", "\x00\xff", "POST / HTTP/9.9", "GET http://x/ HTTP/1.1", "POST / HTTP/1.1\r\ncontent-length: -1",
             "POST / HTTP/1.1\r\ntransfer-encoding: chunked", "GET /health?x=1 HTTP/1.1"]  # fmt: skip
    for number in count():
        if time.monotonic() > until:
            return said(got)
        got[target.ask(wrong[number % len(wrong)])[0]] += 1
        with contextlib.suppress(OSError), contextlib.closing(target.dial(tls=False)) as sock:
            sock.sendall(os.urandom(1000))
            sock.recv(100)


def unknown_routes(target: Target, until: float) -> str:
    """As many unknown routes as there is time for, 20,000 at the most."""
    got = Counter[str]()

    def send(first: int) -> None:
        for number in range(first, ROUTES, 4):
            if time.monotonic() > until:
                return
            got[target.ask(f"GET /v1/fleet/route-{number} HTTP/1.1")[0]] += 1

    _together([lambda first=first: send(first) for first in range(4)])  # type: ignore[misc]
    return said(got)


def many_connections(target: Target, until: float) -> str:
    """1,100 connections, more than the server may have files, from 250 addresses."""
    held: list[socket.socket] = []
    refused = 0
    try:
        for number in range(1100):
            try:
                held.append(target.dial(tls=False, number=number + 1))
            except OSError:
                refused += 1
        time.sleep(max(0.0, until - time.monotonic()))
        return f"{len(held)} connected, {refused} refused; {sum(map(_is_closed, held))} were hung up on"
    finally:
        for sock in held:
            sock.close()


def replayed_tokens(target: Target, until: float) -> str:
    """What a device of ours has sent, sent again: as it was, on other routes, forged and cut."""
    got = Counter[str]()
    paths = [link.SESSION, link.WAIT, link.BEAT, link.LEAVE, f"{link.REPLY}x", "/v1/fleet/deactivate-node"]
    for number in count():
        if time.monotonic() > until:
            return said(got)
        # The older ones come after the newer ones, which have larger numbers.
        path, token = target.recorded[-1 - number % len(target.recorded)]
        words = token.split(" ")
        forged = " ".join([*words[:2], str(2**40 + number), *words[3:]])
        for where, what in (
            (path, token),
            (paths[number % len(paths)], token),
            (path, forged),
            (path, token[: 10 + number % 150]),
        ):
            head = f"POST {where} HTTP/1.1\r\ncontent-length: 0\r\nauthorization: {what}"
            got[target.ask(head)[0]] += 1


STRANGERS: dict[str, Attack] = {
    "bodies of 60 MiB without a key": large_bodies,
    "20 bodies held open": held_bodies,
    "header lines of 160 MiB": long_header,
    "200 idle TLS connections": idle_connections,
    "100 slow heads": slow_headers,
    "100 half-closed TLS connections": half_closed,
    "garbage": garbage,
    "unknown routes of strangers": unknown_routes,
    "1,100 connections at 1,024 files": many_connections,
    "tokens replayed, reordered, forged, cut": replayed_tokens,
}


def _held(
    target: Target, until: float, most: int, say: Callable[[ssl.SSLSocket, int], None], *, first: bytes = b""
) -> str:
    """Hold so many connections, and say something on each of them every second; what is closed is opened anew."""
    held: list[tuple[ssl.SSLSocket, int]] = []
    opened = closed = 0
    try:
        while time.monotonic() < until:
            while len(held) < most and time.monotonic() < until:
                try:
                    sock = target.dial()
                    assert isinstance(sock, ssl.SSLSocket)
                    sock.sendall(first)
                except OSError:
                    break
                held.append((sock, 0))
                opened += 1
            kept = []
            for sock, turn in held:
                try:
                    say(sock, turn)
                    alive = not _is_closed(sock)
                except OSError:
                    alive = False
                closed += not alive
                kept += [(sock, turn + 1)] if alive else []
            held = kept
            time.sleep(0.5)
        return f"{opened} opened, {closed} of them hung up on"
    finally:
        for sock, _ in held:
            sock.close()


def _is_closed(sock: socket.socket) -> bool:
    """Whether the other end has hung up; what it has said is read."""
    sock.settimeout(0.0005)
    try:
        while True:
            if not socket.socket.recv(sock, 4096):
                return True
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        with contextlib.suppress(OSError):
            sock.settimeout(SECONDS)


def _together(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def said(got: Counter[str]) -> str:
    return ", ".join(f"{number} x {what or 'hung up on'}" for what, number in got.most_common())
