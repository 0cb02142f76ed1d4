"""HTTP as uvicorn speaks it, with bounds on what it leaves open: the head of a request, its pace, and who may go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from perennial.server.link.asgi import PEER, Peer

# Bytes of the head of a request, and seconds until it is there.
_MOST_HEAD, _HEAD_SECONDS = 2**13, 10.0
# Seconds that a connection rests between two requests: of a stranger, and of a device that works on an order.
_REST, _KNOWN_REST = 10.0, 75.0
# Seconds for a stranger to read its last answer; fewer for one that is still sending.
_LINGER, _UNREAD_LINGER = 0.5, 0.05
# A stranger greets and begins a session, perhaps twice.
_MOST_ASKED = 8
# Bytes that are written before the writer waits for the reader.
_UNREAD = 2**15


class Guarded(HttpToolsProtocol):
    """One connection. ``peer`` goes with every request of it. ``met``: is called when the other end is known."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        met: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.timeout_keep_alive = _REST  # type: ignore[assignment]
        self.peer = Peer(self._abort, self._meet)
        self._met, self._over = met, over
        self._asked = self._head = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNREAD)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._head_is_here()
        self.peer.close()
        self._over()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._is_idle():
            # From the first byte on, even of an empty line; uvicorn stops its own clock with it.
            self._await_head()
        super().data_received(data)
        if self._late and not self.transport.is_closing():
            self._head += len(data)
            if self._head > _MOST_HEAD:
                self.send_400_response("The head is too long.")

    def on_message_begin(self) -> None:
        if self.pipeline:
            # One request may come while the last bytes of an answer are written; nobody who belongs here sends more.
            self._abort()
        super().on_message_begin()
        self.scope[PEER] = self.peer  # type: ignore[literal-required]

    def on_headers_complete(self) -> None:
        self._head_is_here()
        self._asked += 1
        if not self.peer.known and self._asked > _MOST_ASKED:
            self._abort()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > _MOST_HEAD:
            # What is raised here is answered with 400.
            raise ValueError("the head is too long")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and not self.peer.known:
            # TLS would read on until the stranger has said goodbye, whatever comes.
            self.loop.call_later(_UNREAD_LINGER if self.cycle.more_body else _LINGER, self._abort)

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)
            self.loop.call_later(_LINGER, self._abort)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        if self._late is None:
            self._head = 0
            self._late = self.loop.call_later(_HEAD_SECONDS, self._abort)

    def _head_is_here(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None

    def _abort(self) -> None:
        self.transport.abort()

    def _meet(self) -> None:
        self.timeout_keep_alive = _KNOWN_REST  # type: ignore[assignment]
        self._met()
