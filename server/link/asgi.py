"""ASGI as the link uses it: a request of which only the head is read, an answer, and the connection between them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perennial.server.link.fleet_keys import Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Where the listener puts the connection that a request comes by.
PEER = "perennial.peer"
# The length of a body that does not say it; nobody reads such a body.
ENDLESS = 2**62
# What is written at once, so that a slow reader takes no more of the server's memory than twice this.
_WRITTEN, _SMALL = 2**16, 2**13
_SECONDS_TO_WRITE = 30.0


class Peer:
    """The other end of a connection. Strangers are few and short; whoever has proved a key is ``known``."""

    def __init__(self, abort: Callable[[], None] = lambda: None, met: Callable[[], None] = lambda: None) -> None:
        """``abort``: ends the connection at once, whatever is still to be written. ``met``: hears of ``meet``."""
        self.abort, self._met = abort, met
        self.known = self.closed = False
        self._on_close: Callable[[], None] = lambda: None

    def meet(self, on_close: Callable[[], None] = lambda: None) -> None:
        """Note that the other end has proved who it is; ``on_close`` is called when the connection is lost."""
        self.known, self._on_close = True, on_close
        self._met()

    def close(self) -> None:
        """Note that the connection is lost."""
        if not self.closed:
            self.closed = True
            self._on_close()


@dataclass
class Request:
    """The head of a request. digest: the hash that its body must have; read: how much of the body was read."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    length: int
    receive: Receive
    peer: Peer
    digest: str = ""
    read: int = 0

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> Request:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        endless = b"transfer-encoding" in headers or not length.isdigit() or len(length) > 15
        path = str(scope["path"]) if not scope.get("query_string") else ""
        peer = scope.get(PEER) or Peer()
        return cls(scope["method"], path, headers, ENDLESS if endless else int(length), receive, peer)

    @property
    def authorization(self) -> str:
        return self.headers.get(b"authorization", b"").decode("latin-1")


@dataclass
class Answer:
    """What a request is answered with. pieces: a body that is sent from where it lies."""

    status: int
    body: bytes = b""
    pieces: Sequence[bytes] = ()
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    close: bool = False

    @classmethod
    def json(cls, value: object) -> Answer:
        return cls(200, json.dumps(value).encode(), headers=[(b"content-type", b"application/json")])

    @classmethod
    def refusing(cls, refusal: Refusal) -> Answer:
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        if refusal.retry:
            headers.append((b"retry-after", str(math.ceil(refusal.retry)).encode()))
        return cls(refusal.status, str(refusal).encode(), headers=headers)

    async def send(self, send: Send) -> None:
        """Write the answer; TimeoutError if the other end does not read it."""
        *pieces, last = _slices(self.pieces or [self.body])
        headers = self.headers + ([(b"connection", b"close")] if self.close else [])
        if self.status != 204:
            headers = [*headers, (b"content-length", str(sum(map(len, pieces), len(last))).encode())]
        async with asyncio.timeout(_SECONDS_TO_WRITE) as limit:
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                limit.reschedule(asyncio.get_running_loop().time() + _SECONDS_TO_WRITE)
            await send({"type": "http.response.body", "body": last})


def _slices(pieces: Sequence[bytes]) -> list[bytes | memoryview]:
    """Return what is written at once: small pieces together, which is cheaper than one by one; large ones in parts."""
    written: list[bytes | memoryview] = []
    small: list[bytes] = []
    for piece in pieces:
        if len(piece) < _SMALL and sum(map(len, small)) < _WRITTEN:
            small.append(piece)
            continue
        view = memoryview(piece)
        written += [b"".join(small), *(view[start : start + _WRITTEN] for start in range(0, len(view), _WRITTEN))]
        small = []
    return [part for part in (*written, b"".join(small)) if part] or [b""]


async def read_body(request: Request, silent: float, seconds: float) -> bytes:
    """Return the body of a request, which must have the length and the hash that its head says. Raises ``Refusal``.

    silent, seconds: how long may pass without a byte, and in all.
    """
    pieces: list[bytes] = []
    summed, more = hashlib.sha256(), True
    try:
        async with asyncio.timeout(seconds):
            while more:
                message = await asyncio.wait_for(request.receive(), silent)
                if message["type"] != "http.request":
                    raise Refusal(400, "the request was cut off")
                piece, more = message.get("body", b""), message.get("more_body", False)
                request.read += len(piece)
                if request.read > request.length:
                    raise Refusal(400, "the body is longer than it was said to be")
                summed.update(piece)
                pieces.append(piece)
    except TimeoutError:
        raise Refusal(408, "the body comes too slowly") from None
    if request.read != request.length or not hmac.compare_digest(summed.hexdigest().encode(), request.digest.encode()):
        raise Refusal(400, "the body is not the one that the token is of")
    return b"".join(pieces)
