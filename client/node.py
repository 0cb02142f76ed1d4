"""A node: pulls orders from the server, lets the ClientApp answer them, and comes back after every interruption."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from flwr.app import Context, Error, Message, UserConfig

from perennial.client.kept_predictors import KeptPredictors
from perennial.client.link.failures import OtherVersion, Refused, Unreachable
from perennial.client.link.peer import Server
from perennial.common.wire.pacing import backoff, pause

T = TypeVar("T")
App = Callable[[Message, Context], Message]
# Flower's code for a ClientApp that raised.
_APP_RAISED = 2
# Between questions to a server that answers at once, a stock SuperLink.
_LEAST, _MOST = 0.05, 3.0
# A node that was served for so many seconds and is forgotten has a server that was restarted: it comes back at once,
# if not in the same moment as the rest of the fleet. Sooner than that, two nodes may have one key.
_SERVED, _MOMENT = 5.0, 0.5


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
        kept: KeptPredictors | None = None,
    ) -> None:
        """``keyed``: the node has a key that the server knows; otherwise it registers itself and leaves no trace.

        kept: keeps the run's predictors on this device.
        """
        self._kept = kept
        self._connect, self._app, self._config = connect, app, node_config
        self._stop, self._say, self._keyed = stop, say, keyed

    def serve(self) -> None:
        """Connect, serve, and reconnect for ever, waiting a little longer after every failure in a row."""
        failures = 0
        while not self._stop.is_set():
            connection, known, retry, begun, restarted = None, False, 0.0, 0.0, False
            try:
                connection = self._connect()
                node_id = connection.activate()
                self._say(f"connected as node {node_id}")
                failures, known, begun = 0, True, time.monotonic()
                self._serve_connected(connection)
            except Unreachable as error:
                retry = error.retry
                self._say(f"the server cannot be reached: {error}")
            except Refused as error:
                restarted = error.gone and known and time.monotonic() - begun > _SERVED
                if not self._stop.is_set():
                    self._say(_remedy(error, known=known))
            finally:
                if connection:
                    connection.close(unregister=not self._keyed)
            wait = _MOMENT * random.random() if restarted else max(retry, backoff(failures, random.random()))
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
                self._renew(connection)
                if self._serve_one(connection, beat):
                    since = time.monotonic()
                beat.raise_if_gone()
                if not connection.waits:
                    self._stop.wait(pause(time.monotonic() - since, least=_LEAST, most=_MOST))
        finally:
            beat.stop()

    def _serve_one(self, connection: Server, beat: _Heartbeat) -> bool:
        """Answer one order; return whether there was one."""
        if (order := self._insist(connection.pull)) is None:
            return False
        beat.due.set()
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
        finally:
            beat.rest()
        return True

    def _renew(self, connection: Server) -> None:
        """Fetch what the run has published; a server that does not offer it, or is away, is no reason to stop."""
        if self._kept is None:
            return
        try:
            self._kept.renew(connection.published)
        except Unreachable:
            pass  # the next pull says so
        except Refused as error:
            if error.gone:
                raise
            self._say(f"no predictors: {error}")
            self._kept = None

    def _insist(self, action: Callable[[], T], deadline: float = float("inf")) -> T:
        """Return what ``action`` returns, repeating it while the server cannot be reached."""
        busy = False
        for failures in count():
            try:
                result = action()
            except Unreachable as error:
                busy = error.retry > 0
                if failures == 0 and not error.retry:
                    self._say(f"the server cannot be reached: {error}; trying again until it can")
                wait = max(error.retry, backoff(failures, random.random()))
                if self._stop.wait(wait) or time.time() > deadline:
                    raise Refused("stopped, or too late for an answer", gone=False) from error
            else:
                if failures and not busy:
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
    """Says in the background that the node lives, also while it trains; a thread once it is needed.

    due: set while beats are due.
    """

    def __init__(self, connection: Server) -> None:
        self._connection: Server = connection
        self.due = threading.Event()
        self._stop = threading.Event()
        self._gone: Refused | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.rest()
        self._thread.start()

    def rest(self) -> None:
        """Note that no order is in hand."""
        if not self._connection.beats_idle:
            self.due.clear()
        else:
            self.due.set()

    def raise_if_gone(self) -> None:
        if self._gone:
            raise self._gone

    def stop(self) -> None:
        self._stop.set()
        self.due.set()
        # A beat on a dead link takes seconds to fail; the thread is a daemon and may end by itself.
        self._thread.join(timeout=0.1)

    def _run(self) -> None:
        while self.due.wait() and not self._stop.wait(self._connection.beat_every * random.uniform(0.9, 1.1)):
            if not self.due.is_set():
                continue
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
    if isinstance(error, OtherVersion):
        return str(error)
    if error.gone and not known:
        # Flower refuses what was signed more than 5 s ahead of its clock, or 305 s behind.
        return f"the server does not take this node's signature ({error}); is this device's clock right?"
    if error.gone:
        return "the server does not know this node (it was restarted, or the key was revoked); connecting again"
    return (
        f"the server refuses this node: {error}; is its public key in the server's nodes folder? "
        "(a stock SuperLink also refuses a node that died until it marks it offline, up to a minute)"
    )
