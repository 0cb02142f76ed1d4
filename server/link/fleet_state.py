"""What a server keeps of its fleet: who is online, the orders of each node, and when something is overdue.

Pure: the time is passed in, nothing waits, and nothing scans: what is due comes out of a heap. Not for two threads at
once; ``perennial.server.link.fleet.Fleet`` has the lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from perennial.common.wire.link import BEAT_EVERY
from perennial.server.link.fleet_keys import Refusal

# A node is offline when nothing was heard of it for so long, or so long after its connection broke: a thousand that
# come back at once from one address are let in within half of that.
SILENCE, GRACE = 3 * BEAT_EVERY, BEAT_EVERY
# An order is handed out again after a node has lost it, on the way or by a restart; one that kills its node is not.
MOST_HANDED = 3
EXPIRED, OFFLINE = "the order expired", "the node went offline before it had answered"
# Entries of the heap that may be out of date, beside as many as there are good ones.
_STALE = 1000


@dataclass(eq=False)
class Errand:
    """An order under way. pieces: its bytes; room: of the reply, in bytes; body: of the reply, once it is there."""

    id: str
    node: int
    pieces: Sequence[bytes]
    room: int
    deadline: float
    handed: int = 0
    body: bytes | None = None
    # Why there is no reply and will be none.
    lost: str = ""

    @property
    def done(self) -> bool:
        return self.body is not None or bool(self.lost)


@dataclass(eq=False)
class OnlineNode:
    """A node that is online. silent_at: when it is offline, unless it is heard of. busy: its requests being served."""

    id: int
    silent_at: float
    # When the heap looks after it; never later than ``silent_at``.
    watched: float = float("inf")
    busy: int = 0
    # Orders to hand out, in this order, and those handed out.
    pending: dict[str, Errand] = field(default_factory=dict)
    handed: dict[str, Errand] = field(default_factory=dict)
    # The order that it answered last: it may not know that the answer arrived.
    answered: str = ""


class FleetState:
    """Nodes that are online, and orders until they are taken or forgotten.

    freed: is told the size of every reply that is taken or forgotten.
    """

    def __init__(self, freed: Callable[[int], None] = lambda _: None) -> None:
        self.online: dict[int, OnlineNode] = {}
        self._orders: dict[str, Errand] = {}
        # Orders that have an outcome, in the order of arrival.
        self._done: dict[str, Errand] = {}
        self._freed = freed
        self._due: list[tuple[float, int, int | str]] = []
        self._serial = count()
        # Nodes that have begun a session since somebody asked.
        self._returned: set[int] = set()

    def __len__(self) -> int:
        """Return how many orders are under way."""
        return len(self._orders)

    # --- Nodes --------------------------------------------------------------------------------------------------------

    def come(self, node_id: int, now: float) -> OnlineNode:
        """Note that a node begins a session; one that is here already stays, and is handed its orders again."""
        node = self.online.setdefault(node_id, OnlineNode(node_id, now + SILENCE))
        self.heard(node, now)
        self._watch(node)
        self._take_back(node)
        self._returned.add(node_id)
        return node

    def returned(self) -> set[int]:
        """Return the nodes that have begun a session since this was last asked."""
        found, self._returned = self._returned, set()
        return found

    def heard(self, node: OnlineNode, now: float) -> None:
        node.silent_at = now + SILENCE

    def hung_up(self, node_id: int, now: float) -> None:
        """Note that a node's connection broke: it has a moment to come back."""
        if node := self.online.get(node_id):
            node.silent_at = min(node.silent_at, now + GRACE)
            self._watch(node)

    def leave(self, node_id: int) -> None:
        """Take a node offline; its orders are lost."""
        self._returned.discard(node_id)
        if node := self.online.pop(node_id, None):
            for order in (*node.handed.values(), *node.pending.values()):
                self._lose(order, OFFLINE)

    # --- Orders -------------------------------------------------------------------------------------------------------

    def push(self, order: Errand) -> None:
        """Take an order; that to a node which is not online is lost at once."""
        self._orders[order.id] = order
        if (node := self.online.get(order.node)) is None:
            self._lose(order, OFFLINE)
            return
        node.pending[order.id] = order
        self._add(order.deadline, order.id)

    def hand_out(self, node: OnlineNode) -> Errand | None:
        """Return the node's next order. It asks because it has none in hand: what it was given, it has lost."""
        self._take_back(node)
        while node.pending:
            order = node.pending.pop(next(iter(node.pending)))
            if order.handed < MOST_HANDED:
                order.handed += 1
                node.handed[order.id] = order
                return order
            self._lose(order, f"the node lost the order {MOST_HANDED} times")
        return None

    def expect(self, node: OnlineNode, order_id: str, length: int) -> Errand | None:
        """Return the order that a node is about to answer with ``length`` bytes; None: it has done so. Or refuse it."""
        if order_id == node.answered:
            return None
        order = self._orders.get(order_id)
        if order is None or order.node != node.id or order.done or not order.handed:
            raise Refusal(410, "this node has no such order (any more)")
        if length > order.room:
            self._lose(order, f"the reply is refused: it has {length} bytes, the order leaves room for {order.room}")
            raise Refusal(413, f"a reply to this order has at most {order.room} bytes")
        return order

    def answer(self, node: OnlineNode, order: Errand, body: bytes) -> bool:
        """Keep a reply; False if the order was forgotten, lost or answered meanwhile."""
        if order.done or order.id not in self._orders:
            return False
        order.body = body
        self._finish(order)
        node.answered = order.id
        return True

    def take(self, order_ids: Collection[str], most: int | None = None) -> list[Errand]:
        """Return those of the orders that have an outcome, in the order of arrival, and forget them."""
        found = list(islice((order for order in self._done.values() if order.id in order_ids), most))
        self.forget(order.id for order in found)
        return found

    def forget(self, order_ids: Iterable[str]) -> None:
        """Drop orders, and replies to them."""
        for order_id in order_ids:
            if order := self._orders.pop(order_id, None):
                if not order.done:
                    self._finish(order)
                self._done.pop(order_id, None)
                if order.body is not None:
                    self._freed(len(order.body))

    # --- Time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[int]:
        """Let what is due by ``now`` happen; return the nodes that went offline."""
        gone = []
        while self._due and self._due[0][0] <= now:
            when, _, name = heapq.heappop(self._due)
            if isinstance(name, str):
                if (order := self._orders.get(name)) and not order.done:
                    self._lose(order, EXPIRED)
            elif (node := self.online.get(name)) and node.watched == when:
                node.watched = float("inf")
                if node.busy:
                    self.heard(node, now)
                if node.silent_at <= now:
                    self.leave(name)
                    gone.append(name)
                else:
                    self._watch(node)
        return gone

    def _watch(self, node: OnlineNode) -> None:
        """Look after a node when it may be offline; never twice at once."""
        if node.silent_at < node.watched:
            node.watched = node.silent_at
            self._add(node.watched, node.id)

    def _add(self, when: float, name: int | str) -> None:
        heapq.heappush(self._due, (when, next(self._serial), name))
        if len(self._due) > 2 * (len(self._orders) + len(self.online)) + _STALE:
            self._due = [entry for entry in self._due if self._is_good(entry[0], entry[2])]
            heapq.heapify(self._due)

    def _is_good(self, when: float, name: int | str) -> bool:
        if isinstance(name, str):
            return name in self._orders and not self._orders[name].done
        return name in self.online and self.online[name].watched == when

    @staticmethod
    def _take_back(node: OnlineNode) -> None:
        if node.handed:
            node.pending, node.handed = {**node.handed, **node.pending}, {}

    def _lose(self, order: Errand, reason: str) -> None:
        order.lost = reason
        self._finish(order)

    def _finish(self, order: Errand) -> None:
        # Nothing of the models stays beyond this.
        order.pieces = ()
        if node := self.online.get(order.node):
            node.handed.pop(order.id, None)
            node.pending.pop(order.id, None)
        if order.id in self._orders:
            self._done[order.id] = order
