"""What stands before Flower's own fleet API: the paths and the sizes that may pass."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from perennial.server.link.asgi import App, Receive, Scope, Send

# A request carries at most one part of a message and its wrapping.
MOST_BYTES = 64 * 2**20


def is_open(path: str) -> bool:
    """Return whether a path may be reached from outside; dots and double slashes are for those who search."""
    plain = path.replace("-", "").replace("/", "").isalnum() and "//" not in path
    return path == "/health" or (plain and path.startswith("/v1/fleet/"))


class Gate:
    """Passes on what belongs to the fleet API and has at most ``most`` bytes, before anything asks who sends it."""

    def __init__(self, app: App, most: int = MOST_BYTES) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        read = 0

        async def bounded() -> MutableMapping[str, Any]:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                return {"type": "http.disconnect"}
            return message

        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not is_open(scope["path"]):
            return await refuse(send, 404)
        if length.isdigit() and int(length) > self._most:
            return await refuse(send, 413)
        return await self._app(scope, bounded, send)


async def refuse(send: Send, status: int) -> None:
    headers = [(b"connection", b"close"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body"})
