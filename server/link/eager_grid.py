"""A Grid that asks for replies soon and often, in place of Flower's fixed poll of three seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun

from perennial.common.command.errors import RunError
from perennial.common.wire.pacing import pause

# Asking costs a millisecond over HTTP and less in-process.
_LEAST, _MOST = 0.005, 0.5


class Stopped(RunError):
    """The operator asked the run to stop; the last checkpoint holds everything up to the last finished round."""


class EagerGrid(Grid):
    """Wraps any Grid; uses its public ``push_messages`` and ``pull_messages`` only.

    Where ``stop`` is set, the next call raises ``Stopped``, and a round that is waiting for replies is abandoned.
    ``forget`` is told the ids of messages that were given up.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        stop: threading.Event | None = None,
        forget: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._grid = grid
        self._stop = stop or threading.Event()
        self._forget = forget or (lambda _: None)

    def set_run(self, run: FlowerRun) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> FlowerRun:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        self._raise_if_stopped()
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._raise_if_stopped()
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._raise_if_stopped()
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the replies that came within ``timeout`` seconds (None: wait for all of them)."""
        return list(self.stream(messages, timeout=timeout))

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send now, and return an iterator over the same replies as they come."""
        return self._arriving({one for one in self.push_messages(list(messages)) if one}, timeout)

    def _arriving(self, waiting: set[str], timeout: float | None) -> Iterator[Message]:
        start = time.monotonic()
        try:
            while waiting:
                arrived = list(self.pull_messages(waiting))
                waiting -= {reply.metadata.reply_to_message_id for reply in arrived}
                some = bool(arrived)
                while arrived:
                    yield arrived.pop(0)
                waited = time.monotonic() - start
                if not waiting or (timeout is not None and waited >= timeout):
                    break
                # Right after a reply the next one is near.
                self._stop.wait(self._rest(waited, some, timeout))
        finally:
            self._forget(waiting)

    @staticmethod
    def _rest(waited: float, arrived: bool, timeout: float | None) -> float:
        rest = _LEAST if arrived else pause(waited, least=_LEAST, most=_MOST)
        return rest if timeout is None else min(rest, max(0.0, timeout - waited))

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped("stopped on request")
