"""A node: pulls orders from the server, lets the ClientApp answer them, and comes back after every interruption."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeVar

from flwr.app import Context, Error, Message, UserConfig

from perennial.client.link.connection import HEARTBEAT, Announced
from perennial.client.link.failures import Refused, Unreachable
from perennial.common.wire.pacing import backoff, pause

T = TypeVar("T")
App = Callable[[Message, Context], Message]
# Flower's code for a ClientApp that raised.
_APP_RAISED = 2
# Between questions to a server that answers at once, a stock SuperLink.
_LEAST, _MOST = 0.05, 3.0


class Server(Protocol):
    """What a node needs of the server; ``perennial.client.link.connection.Connection`` fills it."""

    @property
    def waits(self) -> bool: ...

    def activate(self) -> int: ...
    def heartbeat(self) -> None: ...
    def pull(self) -> Announced | None: ...
    def fetch(self, order: Announced, node_config: UserConfig) -> tuple[Message, Context]: ...
    def push(self, reply: Message, seconds: float) -> None: ...
    def close(self, *, unregister: bool) -> None: ...


class Node:
    """Serves orders until ``stop`` is set."""

    def __init__(
        self,
        connect: Callable[[], Server],
        app: App,
        node_config: UserConfig,
        *,
        stop: threading.Event,
        say: Callable[[str], None],
        keyed: bool,
    ) -> None:
        """``keyed``: the node has a key that the server knows; otherwise it registers itself and leaves no trace."""
        self._connect, self._app, self._config = connect, app, node_config
        self._stop, self._say, self._keyed = stop, say, keyed

    def serve(self) -> None:
        """Connect, serve, and reconnect for ever, waiting a little longer after every failure in a row."""
        failures = 0
        while not self._stop.is_set():
            connection, known = self._connect(), False
            try:
                node_id = connection.activate()
                self._say(f"connected as node {node_id}")
                failures, known = 0, True
                self._serve_connected(connection)
            except Unreachable as error:
                self._say(f"the server cannot be reached: {error}")
            except Refused as error:
                if not self._stop.is_set():
                    self._say(_remedy(error, known=known))
            finally:
                connection.close(unregister=not self._keyed)
            wait = backoff(failures, random.random())
            failures += 1
            if not self._stop.is_set():
                self._say(f"next attempt in {wait:.0f} s")
                self._stop.wait(wait)

    def _serve_connected(self, connection: Server) -> None:
        """Serve until the server does not know the node any more; an outage is waited out."""
        beat = _Heartbeat(connection)
        try:
            since = time.monotonic()
            while not self._stop.is_set():
                if self._serve_one(connection):
                    since = time.monotonic()
                beat.raise_if_gone()
                if not connection.waits:
                    self._stop.wait(pause(time.monotonic() - since, least=_LEAST, most=_MOST))
        finally:
            beat.stop()

    def _serve_one(self, connection: Server) -> bool:
        """Answer one order; return whether there was one."""
        if (order := self._insist(connection.pull)) is None:
            return False
        try:
            message, context = self._insist(lambda: connection.fetch(order, self._config))
            reply, seconds = self._answer(message, context)
            # A server that is back within the order's life still wants the reply.
            self._insist(lambda: connection.push(reply, seconds), message.metadata.created_at + message.metadata.ttl)
        except Refused as error:
            if error.gone:
                raise
            self._say(f"an order was dropped: {error}")
            # The server may name it again at once.
            self._stop.wait(backoff(0, random.random()))
        return True

    def _insist(self, action: Callable[[], T], deadline: float = float("inf")) -> T:
        """Return what ``action`` returns, repeating it while the server cannot be reached."""
        for failures in count():
            try:
                result = action()
            except Unreachable as error:
                if failures == 0:
                    self._say(f"the server cannot be reached: {error}; trying again until it can")
                if self._stop.wait(backoff(failures, random.random())) or time.time() > deadline:
                    raise Refused("stopped, or too late for an answer", gone=False) from error
            else:
                if failures:
                    self._say(f"the server is back after {failures} failed attempts")
                return result
        raise AssertionError("count() never ends")

    def _answer(self, message: Message, context: Context) -> tuple[Message, float]:
        start = time.monotonic()
        try:
            reply = self._app(message, context)
        except Exception as error:  # Whatever the app raises, the server must hear of it.
            self._say(f"an order failed: {type(error).__name__}: {error}")
            reply = Message(Error(_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)
        return reply, time.monotonic() - start


class _Heartbeat:
    """Says in the background that the node lives, also while it trains."""

    def __init__(self, connection: Server) -> None:
        self._connection = connection
        self._stop = threading.Event()
        self._gone: Refused | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def raise_if_gone(self) -> None:
        if self._gone:
            raise self._gone

    def stop(self) -> None:
        self._stop.set()
        # A beat on a dead link takes seconds to fail; the thread is a daemon and may end by itself.
        self._thread.join(timeout=0.1)

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT * random.uniform(0.35, 0.45)):
            try:
                self._connection.heartbeat()
            except Unreachable:
                continue
            except Refused as error:
                self._gone = error
                return
            except RuntimeError:  # The connection was closed meanwhile.
                return


def _remedy(error: Refused, *, known: bool) -> str:
    if error.gone and not known:
        # Flower refuses what was signed more than 5 s ahead of its clock, or 305 s behind.
        return f"the server does not take this node's signature ({error}); is this device's clock right?"
    if error.gone:
        return "the server does not know this node (it was restarted, or the key was revoked); connecting again"
    return (
        f"the server refuses this node: {error}; is its public key in the server's nodes folder? "
        "(a node that died is also refused until the server marks it offline, up to 20 s)"
    )
