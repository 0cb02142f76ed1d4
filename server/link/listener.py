"""The public port: an ASGI application served in a thread, over TLS, behind a gate."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

from perennial.common.command.errors import InputError, RunError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# A request carries at most one row of parts (32 MiB) or one part and its wrapping.
MOST_BYTES = 64 * 2**20
_START_SECONDS = 30.0


class Listener:
    """Serves ``app`` on host:port until ``stop``. ``cert`` None: plain HTTP."""

    def __init__(self, app: App, host: str, port: int, *, cert: Path | None = None, key: Path | None = None) -> None:
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                Gate(app),
                log_level="error",
                access_log=False,
                lifespan="auto",
                ws="none",
                # uvloop does not let go of a socket that it was given.
                loop="asyncio",
                ssl_certfile=str(cert) if cert else None,
                ssl_keyfile=str(key) if key else None,
                # Longer than a node's longest pause between two questions, so that it keeps its connection.
                timeout_keep_alive=30,
                timeout_graceful_shutdown=3,
            )
        )
        self._thread = threading.Thread(target=self._serve, name="listener", daemon=True)

    def start(self) -> None:
        """Return once requests are served."""
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RunError("the listener did not start; are the certificate and the key readable and a pair?")
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5.0)
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


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
            return await _refuse(send, 404)
        if length.isdigit() and int(length) > self._most:
            return await _refuse(send, 413)
        return await self._app(scope, bounded, send)


async def _refuse(send: Send, status: int) -> None:
    headers = [(b"connection", b"close"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body"})


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; try another --host or --port") from error
