"""TLS on a connection, read and written record by record by OpenSSL itself.

The TLS of event loops goes through buffers of its own, which grow with what passes and last as long as the connection:
0.7 MB for each device that has sent and received half a megabyte. Here nothing of a connection that rests is in memory
but its keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable

# The largest record of TLS, and how many of them are read before others have their turn.
_RECORD, _AT_ONCE = 2**14, 4
_HIGH = 2**16


async def begin_tls(
    accepted: socket.socket,
    context: ssl.SSLContext,
    protocol: Callable[[], asyncio.Protocol],
    *,
    handshake_seconds: float,
    shutdown_seconds: float,
) -> None:
    """Set up TLS on a socket that does not block, and leave the connection to a protocol; OSError, or TimeoutError."""
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wrapped = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
    try:
        async with asyncio.timeout(handshake_seconds):
            await _shake_hands(wrapped)
        TlsTransport(wrapped, context, protocol(), shutdown_seconds).begin()
    except BaseException:
        wrapped.close()
        raise


async def _shake_hands(wrapped: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            return wrapped.do_handshake()
        except ssl.SSLWantReadError:
            watch, unwatch = loop.add_reader, loop.remove_reader
        except ssl.SSLWantWriteError:
            watch, unwatch = loop.add_writer, loop.remove_writer
        ready: asyncio.Future[None] = loop.create_future()
        watch(wrapped.fileno(), _ring, ready)
        try:
            await ready
        finally:
            unwatch(wrapped.fileno())


def _ring(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class TlsTransport(asyncio.Transport):
    """A connection after its handshake, as asyncio has them. For one event loop."""

    def __init__(
        self, wrapped: ssl.SSLSocket, context: ssl.SSLContext, protocol: asyncio.Protocol, shutdown_seconds: float
    ) -> None:
        super().__init__({"socket": wrapped, "sslcontext": context})
        self._socket, self._protocol, self._shutdown_seconds = wrapped, protocol, shutdown_seconds
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._size, self._high, self._low = 0, _HIGH, _HIGH // 4
        self._reads = self._writes = self._full = self._over = self._closing = self._lost = False
        self._late: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._protocol.connection_made(self)
        self.resume_reading()

    # --- Reading ------------------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._reads

    def resume_reading(self) -> None:
        if not self._reads and not self._over and not self._lost:
            self._reads = True
            self._loop.add_reader(self._socket.fileno(), self._read)

    def pause_reading(self) -> None:
        if self._reads and not self._closing:
            self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._socket.fileno())

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._reads:
                return
            try:
                # A record is read as a whole, so that nothing waits where the event loop does not see it.
                data = self._socket.recv(_RECORD)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                return self._lose(error)
            if not data:
                return self._ended()
            # Who is told goodbye may have been sending; that is read until the other end has said so too.
            if not self._closing:
                try:
                    self._protocol.data_received(data)
                except Exception as error:  # as asyncio does: nothing that comes in may leave a connection in between
                    return self._lose(error)

    def _ended(self) -> None:
        """The other end has said goodbye, or gone without a word."""
        if self._closing and not self._unsent:
            return self._lose(None)
        self._over = True
        self._stop_reading()
        if not self._closing:
            self._protocol.eof_received()
            self.close()

    # --- Writing ------------------------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._size

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._unsent.append(memoryview(data))
        self._size += len(data)
        if not self._writes:
            self._write()
        if self._size > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def _write(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            try:
                # If it cannot be sent now, OpenSSL wants the very same bytes again.
                sent = self._socket.send(first[:_RECORD])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not self._writes:
                    self._writes = True
                    self._loop.add_writer(self._socket.fileno(), self._write)
                return
            except OSError as error:
                return self._lose(error)
            self._size -= sent
            if sent < len(first):
                self._unsent[0] = first[sent:]
            else:
                self._unsent.popleft()
        self._stop_writing()
        if self._full and self._size <= self._low:
            self._full = False
            self._protocol.resume_writing()
        if self._closing:
            self._say_goodbye()

    def _stop_writing(self) -> None:
        if self._writes:
            self._writes = False
            self._loop.remove_writer(self._socket.fileno())

    # --- The end ------------------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what is written, say goodbye, and wait a while for the other end to do so."""
        if self._closing:
            return
        self.resume_reading()
        self._closing = True
        self._late = self._loop.call_later(self._shutdown_seconds, self._lose, None)
        if not self._unsent:
            self._say_goodbye()

    def abort(self) -> None:
        self._lose(None)

    def _say_goodbye(self) -> None:
        try:
            self._socket.unwrap()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            # The other end is gone, or has broken the protocol.
            pass
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._stop_reading()
        self._stop_writing()
        self._unsent.clear()
        self._size = 0
        if self._late:
            self._late.cancel()
        self._loop.call_soon(self._finish, error)

    def _finish(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            with contextlib.suppress(OSError):
                self._socket.close()
