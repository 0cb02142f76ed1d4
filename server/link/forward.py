"""A door before a stock SuperLink: behind the listener's gate, it passes the fleet API and the health check on.

Flower's control and runtime APIs share the fleet's port and ask nobody who they are. A SuperLink on loopback behind
this (or behind nginx, deploy/nginx.conf) can be reached for the fleet alone. Requests are read in full and written
anew, so that nothing can hide between two ways of reading them.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from perennial.server.link.asgi import PEER, Receive, Scope, Send

# What describes one connection is not passed on to the next.
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"host", b"content-length"}
)
_SECONDS = 60.0


class Forward:
    """An ASGI application that asks ``upstream``, an origin such as https://127.0.0.1:9091, in place of answering."""

    def __init__(self, upstream: str, ca: Path | None) -> None:
        verify = ssl.create_default_context(cafile=str(ca)) if ca else False
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=50)
        self._client = httpx.AsyncClient(base_url=upstream, verify=verify, timeout=_SECONDS, limits=limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]
        try:
            reply = await self._client.request(scope["method"], scope["path"], content=body, headers=headers)
        except httpx.HTTPError:
            # The status that a node takes as a reason to try again.
            return await _answer(send, 503, [], b"")
        if (peer := scope.get(PEER)) and reply.is_success and not peer.known:
            peer.meet()
        kept = [(name.lower(), value) for name, value in reply.headers.raw if name.lower() not in _HOP_BY_HOP]
        # httpx has decoded the content.
        await _answer(send, reply.status_code, [h for h in kept if h[0] != b"content-encoding"], reply.content)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Close the connections with the listener."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._client.aclose()
        await send({"type": "lifespan.shutdown.complete"})


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
