"""The fleet as both of its threads see it: the one that serves devices, and the one that trains.

One lock around keys and state; who waits for a reply is woken by a condition, and who waits for an order by the loop.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from perennial.server.link.bindings import Bindings
from perennial.server.link.fleet_keys import Keys
from perennial.server.link.fleet_state import Errand, FleetState

Clock = Callable[[], float]


@dataclass(frozen=True)
class RunFacts:
    """What devices are told of a run."""

    config: Mapping[str, str | int | float | bool]
    id: int = field(default_factory=lambda: secrets.randbits(62))


class Fleet:
    """Registers keys, takes orders and gives replies. ``loop`` and the three hooks are set by whoever serves."""

    def __init__(
        self, run: RunFacts, *, anybody: bool = False, certificate: bytes = b"", clock: Clock = time.monotonic
    ):
        self.run, self.clock = run, clock
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self.keys = Keys(anybody=anybody, certificate=certificate)
        self.bindings = Bindings()
        self.state = FleetState(self._free)
        self.over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[Sequence[int]], None]
        self._freed: Callable[[int], None]

    def serve(
        self, loop: asyncio.AbstractEventLoop, wake: Callable[[Sequence[int]], None], freed: Callable[[int], None]
    ) -> None:
        """Let ``loop`` know of orders (by node) and of bytes that were freed."""
        self._loop, self._wake, self._freed = loop, wake, freed

    # --- For whoever admits nodes -------------------------------------------------------------------------------------

    def register(self, key: EllipticCurvePublicKey, clients: frozenset[int] | None = None) -> int:
        """Admit the node with this key; return its id. A revoked key stays refused until the process restarts.

        clients: those that it may claim; None: whichever no other key is for.
        """
        with self.lock:
            node = self.keys.register(key)
            self.bindings.bind(node, clients)
            return node

    def revoke(self, node_id: int) -> None:
        with self._changed:
            self.keys.revoke(node_id)
            self.bindings.bind(node_id, None)
            self.state.leave(node_id)
            self._changed.notify_all()
        self._tell(lambda: self._wake([node_id]))

    # --- For whoever trains -------------------------------------------------------------------------------------------

    def online(self) -> list[int]:
        with self.lock:
            return list(self.state.online)

    def claim_problem(self, node_id: int, clients: Iterable[int]) -> str:
        with self.lock:
            return self.bindings.problem(node_id, clients)

    def returned(self) -> set[int]:
        """Return the nodes that have begun a session since this was last asked."""
        with self.lock:
            return self.state.returned()

    def push(self, orders: Sequence[Errand]) -> None:
        with self._changed:
            for order in orders:
                self.state.push(order)
            self._changed.notify_all()
        nodes = [order.node for order in orders]
        self._tell(lambda: self._wake(nodes))

    def take(self, order_ids: Collection[str], most: int | None = None, *, seconds: float = 0.0) -> list[Errand]:
        """Return orders that have an outcome; wait for one for at most ``seconds``."""
        with self._changed:
            found = self.state.take(order_ids, most)
            if not found and seconds > 0:
                self._changed.wait(seconds)
                found = self.state.take(order_ids, most)
            return found

    def forget(self, order_ids: Iterable[str]) -> None:
        with self.lock:
            self.state.forget(order_ids)

    def finish(self) -> None:
        """Let nobody wait any more: the run is over."""
        with self.lock:
            self.over = True
            nodes = list(self.state.online)
        self._tell(lambda: self._wake(nodes))

    # --- For whoever serves -------------------------------------------------------------------------------------------

    def tick(self) -> list[int]:
        """Let what is due happen; return the nodes that went offline."""
        with self._changed:
            gone = self.state.tick(self.clock())
            for node in gone:
                self.keys.end(node)
            self._changed.notify_all()
            return gone

    def notify(self) -> None:
        """Wake whoever waits for replies. For those who have the lock."""
        self._changed.notify_all()

    def _free(self, size: int) -> None:
        self._tell(lambda: self._freed(size))

    def _tell(self, action: Callable[[], None]) -> None:
        if self._loop and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)
