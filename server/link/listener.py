"""The public port: an ASGI application served in a thread, over TLS, with bounds on everything that strangers can do.

uvicorn leaves a connection that says nothing open for ever. So connections are accepted here, counted and paced
(``door``) before TLS is set up, and served by a protocol with clocks (``guarded``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import resource
import socket
import ssl
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvicorn

from perennial.common.command.errors import InputError, RunError
from perennial.server.link.asgi import App
from perennial.server.link.door import Door, Guest
from perennial.server.link.guarded import Guarded
from perennial.server.link.tls import begin_tls

LOG = logging.getLogger("perennial")
_START_SECONDS = 30.0
# Files of this process that are no connections, and the most that are asked of the system.
_OTHER_FILES, _MOST_FILES = 128, 2**16
_HANDSHAKE_SECONDS, _SHUTDOWN_SECONDS, _END_SECONDS = 10.0, 5.0, 3.0
# Between two looks at who may come in.
_PACE = 0.02
# A connection without an answer is dead after these seconds; then every few seconds, and so many times.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_UNACKNOWLEDGED_MS = 30_000
# Of the system's memory for one connection: what is on its way at 2.5 MB a second and a tenth of a second.
_SYSTEM_BUFFER = 2**18


class Listener:
    """Serves ``app`` on host:port until ``stop``. ``cert`` None: plain HTTP."""

    def __init__(self, app: App, host: str, port: int, *, cert: Path | None = None, key: Path | None = None) -> None:
        self._socket = _bind(host, port)
        self.port = int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            lifespan="auto",
            ws="none",
            # uvloop if it is there.
            loop="auto",
            server_header=False,
            # Nobody else says where a request comes from.
            proxy_headers=False,
        )
        self._server = _Server(config, Door(_files()), _tls(cert, key) if cert and key else None)
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


class _Server(uvicorn.Server):
    """uvicorn's, except for how connections come in."""

    def __init__(self, config: uvicorn.Config, door: Door[socket.socket], tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._door, self._tls = door, tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # What goes wrong with a stranger's TLS is not worth a line each.
        asyncio.get_running_loop().set_exception_handler(lambda _, context: LOG.debug("listener: %s", context))
        await self.lifespan.startup()
        self.servers = []
        for listening in sockets or ():
            listening.setblocking(False)
            self._start(self._accept(listening))
        self._start(self._usher())
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what is being answered be answered, for a moment, and end the rest."""
        working = list(self._tasks)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for closed in (*(sockets or ()), *self._door.empty()):
            closed.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        deadline = time.monotonic() + _END_SECONDS
        while self.server_state.tasks and time.monotonic() < deadline:
            await asyncio.sleep(_PACE)
        for answering in list(self.server_state.tasks):
            answering.cancel()
        await asyncio.sleep(_PACE)
        # Not all of those that were asked to hang up do.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(_PACE)
        await self.lifespan.shutdown()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError:
                # No more files, or a connection that was gone before it was accepted.
                await asyncio.sleep(_PACE)
                continue
            if self._door.knock(str(address[0]), accepted, time.monotonic()) is None:
                accepted.close()
            self._let_in()

    async def _usher(self) -> None:
        """Let those in who wait outside, as their turn comes."""
        while True:
            await asyncio.sleep(_PACE)
            if self._door.waits():
                self._let_in()

    def _let_in(self) -> None:
        inside, late = self._door.let_in(time.monotonic())
        for guest in late:
            guest.socket.close()
        for guest in inside:
            self._start(self._begin(guest))

    async def _begin(self, guest: Guest[socket.socket]) -> None:
        """Set up TLS, and leave the connection to its protocol."""

        def protocol() -> Guarded:
            met, over = functools.partial(self._door.meet, guest), functools.partial(self._door.leave, guest)
            return Guarded(self.config, self.server_state, self.lifespan.state, met=met, over=over)

        try:
            if self._tls:
                await begin_tls(
                    guest.socket,
                    self._tls,
                    protocol,
                    handshake_seconds=_HANDSHAKE_SECONDS,
                    shutdown_seconds=_SHUTDOWN_SECONDS,
                )
            else:
                await asyncio.get_running_loop().connect_accepted_socket(protocol, guest.socket)
        except Exception as error:  # whatever a stranger does instead of a handshake
            LOG.debug("no connection with %s: %s", guest.address, error)
            self._door.leave(guest)
            guest.socket.close()


def _tls(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Devices keep their connections; tickets to resume one are work for nothing.
    context.num_tickets = 0
    context.load_cert_chain(cert, key)
    return context


def _files() -> int:
    """Return how many connections there may be, after asking the system for more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY:
        soft = _MOST_FILES
    elif soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(16, min(soft, _MOST_FILES) - _OTHER_FILES)


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; those that are accepted from it inherit its options."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; try another --host or --port") from error
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        listening.setsockopt(socket.IPPROTO_TCP, option, value)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        listening.setsockopt(socket.SOL_SOCKET, option, _SYSTEM_BUFFER)
    return listening
