"""HTTP as a device needs it: one kept connection, bodies sent from where they lie, and asked for before they are sent.

The standard library's client cannot wait for the server's permission (100-continue) before it sends a body.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perennial.client.link.failures import Unreachable
from perennial.common.wire.link import MOST_UNASKED

_CONNECT_SECONDS = 10.0
# A server that is run over by a whole fleet lets one after the other in.
_HANDSHAKE_SECONDS = 75.0
_MOST_HEAD = 2**14
_SENT = 2**18


class Stale(Unreachable):
    """A connection that was kept is gone, before anything was answered."""


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def text(self) -> str:
        """Return the first line, for people."""
        line = self.body[:200].decode(errors="replace").partition("\n")[0]
        return line if line.isprintable() and line else f"HTTP {self.status}"


class Http:
    """A connection to host:port that is made when it is needed. For one thread at a time. Raises ``Unreachable``."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._socket: socket.socket | None = None
        self._received = b""

    @property
    def certificate(self) -> bytes:
        """The server's certificate (DER); empty without TLS."""
        sock = self._socket
        return (sock.getpeercert(binary_form=True) or b"") if isinstance(sock, ssl.SSLSocket) else b""

    def request(
        self, method: str, path: str, headers: Mapping[str, str], pieces: Sequence[bytes] = (), *, seconds: float
    ) -> Response:
        """Return the answer. ``seconds``: how long the server may be silent."""
        kept = self._socket is not None
        try:
            sock = self._socket or self._connect()
            sock.settimeout(seconds)
            return self._exchange(sock, _head(method, path, self._host, headers, pieces), pieces)
        except OSError as error:
            stale = kept and not self._received and not isinstance(error, TimeoutError)
            self.close()
            raise (Stale if stale else Unreachable)(_said(error)) from error
        except BaseException:
            # Ctrl-C, say: what comes next on this connection is the answer to this request.
            self.close()
            raise

    def close(self) -> None:
        if self._socket:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket, self._received = None, b""

    def _connect(self) -> socket.socket:
        sock = socket.create_connection((self._host, self._port), _CONNECT_SECONDS)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls:
                sock.settimeout(_HANDSHAKE_SECONDS)
                sock = self._tls.wrap_socket(sock, server_hostname=self._host)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        return sock

    def _exchange(self, sock: socket.socket, head: bytes, pieces: Sequence[bytes]) -> Response:
        asks = sum(map(len, pieces)) > MOST_UNASKED
        self._received = b""
        sock.sendall(head if asks else head + b"".join(pieces))
        status, headers = self._read_head(sock)
        if asks and status == 100:
            for piece in pieces:
                view = memoryview(piece)
                for start in range(0, len(view), _SENT):
                    sock.sendall(view[start : start + _SENT])
            status, headers = self._read_head(sock)
        body = self._read_body(sock, int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return Response(status, headers, body)

    def _read_head(self, sock: socket.socket) -> tuple[int, dict[str, str]]:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > _MOST_HEAD:
                raise ConnectionError("the server's answer is no HTTP")
            if not (more := sock.recv(2**14)):
                raise ConnectionError("the server hung up")
            self._received += more
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        self._received = self._received[end + 4 :]
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ConnectionError("the server's answer is no HTTP")
        pairs = (line.partition(":") for line in lines)
        return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _read_body(self, sock: socket.socket, length: int) -> bytes:
        body, got = bytearray(length), min(length, len(self._received))
        body[:got] = self._received[:got]
        # Whatever it was that came, an answer has begun.
        self._received = self._received[got:] or b" "
        view = memoryview(body)
        while got < length:
            if not (count := sock.recv_into(view[got:])):
                raise ConnectionError("the server hung up")
            got += count
        view.release()
        self._received = b""
        return bytes(body)


def _head(method: str, path: str, host: str, headers: Mapping[str, str], pieces: Sequence[bytes]) -> bytes:
    length = sum(map(len, pieces))
    said = {"host": host, **headers, **({"content-length": str(length)} if method != "GET" else {})}
    if length > MOST_UNASKED:
        said["expect"] = "100-continue"
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not taken: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason}"
    return error.strerror or str(error) or type(error).__name__
