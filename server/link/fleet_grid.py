"""Flower's Grid over the fleet: orders go to whoever waits for them, and replies wake whoever waits for those."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from secrets import token_hex

from flwr.app import Error, Message

from perennial.common.wire.frame import FrameError, Packer, unpack
from perennial.server.cohort.patience import Patience, Watch
from perennial.server.link.eager_grid import Stopped
from perennial.server.link.fleet import Fleet
from perennial.server.link.fleet_state import OFFLINE, Errand
from perennial.server.link.local_grid import LocalGrid, bad_reply, named, node_left

LOG = logging.getLogger("perennial")
# A reply has room for the arrays of its order so many times: what goes out as float16 may come back as float32.
_TIMES = 2
# For a reply's metrics, or the ids of a hundred thousand clients; and for the description of each array.
_SPARE, _PER_ARRAY = 2**20, 2048
# Between two looks whether to stop.
_SLICE = 0.5


@dataclass(frozen=True)
class _Sent:
    """An order under way, and how long the head of its reply may be."""

    message: Message
    head: int


class FleetGrid(LocalGrid):
    """A Grid whose nodes are the devices that are online. For one thread, in a process that has an identity.

    Where ``stop`` is set, the next call raises ``Stopped``, and a round that waits for replies is abandoned.
    patience: says when an exchange has waited long enough for those who are late.
    """

    def __init__(self, fleet: Fleet, *, stop: threading.Event | None = None, patience: Patience | None = None) -> None:
        self._fleet, self._stop = fleet, stop or threading.Event()
        self._patience = patience or Patience()
        self._sent: dict[str, _Sent] = {}
        # Ids are unique in all runs, and no secrets; random ones for each would cost a call of the system.
        self._names = map("-".join, zip(repeat(token_hex(8)), map(str, count()), strict=False))
        self.run_id = fleet.run.id

    def get_node_ids(self) -> Iterable[int]:
        self._raise_if_stopped()
        return self._fleet.online()

    def claim_problem(self, node: int, clients: Iterable[int]) -> str:
        """Return why a node may not claim ``clients``; '' if it may."""
        return self._fleet.claim_problem(node, clients)

    def returned(self) -> set[int]:
        """Return the devices that have begun a session since this was last asked: they were away, or are new."""
        return self._fleet.returned()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send orders; a model that several of them share is in memory once."""
        self._raise_if_stopped()
        packer = Packer()
        orders = [self._order(message, packer) for message in messages]
        self._fleet.push(orders)
        return [order.id for order in orders]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are here, and errors for orders that are lost; never wait."""
        self._raise_if_stopped()
        return [self._reply(order) for order in self._fleet.take(set(message_ids))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the replies that came within ``timeout`` seconds (None: no bound), or before patience ended."""
        return list(self.stream(messages, timeout=timeout))

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send orders now, and return an iterator over the replies as they come; ``timeout`` as above.

        A reply is read when it is asked for, and until then takes a bounded share of memory together with the others:
        devices whose replies find no room wait. What is still under way when the iterator is closed, is forgotten.
        """
        listed = list(messages)
        sent = list(self.push_messages(listed))
        return self._arriving(set(sent), self._patience.watch(listed), timeout)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop orders, and replies to them."""
        forgotten = list(message_ids)
        self._fleet.forget(forgotten)
        for order_id in forgotten:
            self._sent.pop(order_id, None)

    def _arriving(self, waiting: set[str], watch: Watch, timeout: float | None) -> Iterator[Message]:
        begun = time.monotonic()
        try:
            while waiting:
                self._raise_if_stopped()
                passed = time.monotonic() - begun
                left = min(watch.left(passed), float("inf") if timeout is None else timeout - passed)
                for order in self._fleet.take(waiting, 1, seconds=min(left, _SLICE)):
                    waiting.discard(order.id)
                    reply = self._reply(order)
                    watch.heard(reply, time.monotonic() - begun)
                    yield reply
                    break
                else:
                    if left <= 0:
                        return
        finally:
            self.forget(waiting)

    def _order(self, message: Message, packer: Packer) -> Errand:
        said, name = message.metadata, named(message, next(self._names))
        fields = {"id": name, "type": said.message_type, "group": said.group_id, "ttl": said.ttl}
        arrays = [array for record in message.content.array_records.values() for array in record.values()]
        head = len(arrays) * _PER_ARRAY + _SPARE
        self._sent[name] = _Sent(message, head)
        return Errand(
            name,
            said.dst_node_id,
            packer.pack(fields, message.content),
            _TIMES * sum(len(array.data) for array in arrays) + head,
            self._fleet.clock() + said.ttl,
        )

    def _reply(self, order: Errand) -> Message:
        """Return the reply to an order, or an error in its place."""
        sent = self._sent.pop(order.id)
        if order.body is None:
            reply = (node_left if order.lost == OFFLINE else bad_reply)(sent.message, order.lost)
        else:
            reply = self._read(sent, order.body)
        named(reply, next(self._names))
        return reply

    @staticmethod
    def _read(sent: _Sent, body: bytes) -> Message:
        try:
            _, content = unpack(body, sent.head)
        except FrameError as error:
            return bad_reply(sent.message, f"the reply cannot be read: {error}")
        # Two calls, of two signatures of Flower's.
        if isinstance(content, Error):
            return Message(content, reply_to=sent.message)
        return Message(content, reply_to=sent.message)

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set():
            raise Stopped("stopped on request")
