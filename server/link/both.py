"""Devices of ours and stock SuperNodes in one run: two ways to a node, one registry and one Grid."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from flwr.app import Message

from perennial.server.cohort.patience import Patience, Watch
from perennial.server.link.fleet import Fleet, RunFacts
from perennial.server.link.fleet_app import FleetApp, Offer
from perennial.server.link.fleet_grid import FleetGrid
from perennial.server.link.fleet_run import FleetRun
from perennial.server.link.link import Link
from perennial.server.link.link_grid import LinkGrid
from perennial.server.link.local_grid import LocalGrid

# Between two questions to Flower's state, which tells nobody of a reply.
_POLL = 0.05


def open_both(
    config: Mapping[str, str | int | float | bool],
    bundle: bytes,
    *,
    keyed: bool,
    certificate: bytes,
    stop: threading.Event,
    patience: Patience | None,
    offer: Offer | None = None,
) -> FleetRun:
    """Return a run for both kinds of nodes. bundle: the app, which stock nodes fetch."""
    link = Link()
    stock = link.start_run(config, bundle)
    fleet = Fleet(RunFacts(config, stock.grid.run.run_id), anybody=not keyed, certificate=certificate)
    app = FleetApp(fleet, link.gated(keys_required=keyed), offer)

    def finish(completed: bool) -> None:
        fleet.finish()
        stock.finish(completed=completed)

    return FleetRun(
        BothRegistries(fleet, link), app, BothGrid(FleetGrid(fleet, stop=stop), stock.grid, patience), finish
    )


class BothRegistries:
    """A key may be used by either kind of node."""

    def __init__(self, fleet: Fleet, link: Link) -> None:
        self._fleet, self._link = fleet, link
        self._stock: dict[int, int] = {}

    def register(self, key: EllipticCurvePublicKey, clients: frozenset[int] | None = None) -> int:
        node = self._fleet.register(key, clients)
        if node not in self._stock:
            self._stock[node] = self._link.register(key)
        # The same key has another id there.
        self._fleet.bindings.bind(self._stock[node], clients)
        return node

    def revoke(self, node_id: int) -> None:
        self._fleet.revoke(node_id)
        stock = self._stock.pop(node_id)
        self._fleet.bindings.bind(stock, None)
        self._link.revoke(stock)


class BothGrid(LocalGrid):
    """A Grid whose nodes are those of both."""

    def __init__(self, fleet: FleetGrid, stock: LinkGrid, patience: Patience | None = None) -> None:
        self._fleet, self._stock, self._patience = fleet, stock, patience or Patience()
        self.run_id = fleet.run_id

    def get_node_ids(self) -> Iterable[int]:
        return [*self._fleet.get_node_ids(), *self._stock.get_node_ids()]

    def claim_problem(self, node: int, clients: Iterable[int]) -> str:
        return self._fleet.claim_problem(node, clients)

    def returned(self) -> set[int]:
        return self._fleet.returned()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        stock = set(self._stock.get_node_ids())
        both = [(message.metadata.dst_node_id in stock, message) for message in messages]
        ids = {
            is_stock: iter(list(grid.push_messages(message for kind, message in both if kind == is_stock)))
            for is_stock, grid in ((False, self._fleet), (True, self._stock))
        }
        return [next(ids[is_stock]) for is_stock, _ in both]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = list(message_ids)
        return [*self._fleet.pull_messages(asked), *self._stock.pull_messages(asked)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return list(self.stream(messages, timeout=timeout))

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send orders now, and return an iterator over the replies as they come (see ``FleetGrid.stream``)."""
        listed = list(messages)
        sent = {order_id for order_id in self.push_messages(listed) if order_id}
        return self._arriving(sent, self._patience.watch(listed), timeout)

    def forget(self, message_ids: Iterable[str]) -> None:
        forgotten = list(message_ids)
        self._fleet.forget(forgotten)
        self._stock.forget(forgotten)

    def _arriving(self, waiting: set[str], watch: Watch, timeout: float | None) -> Iterator[Message]:
        begun = time.monotonic()
        try:
            while waiting:
                replies = list(self.pull_messages(waiting))
                for reply in replies:
                    waiting.discard(reply.metadata.reply_to_message_id)
                    watch.heard(reply, time.monotonic() - begun)
                    yield reply
                if not replies:
                    passed = time.monotonic() - begun
                    if min(watch.left(passed), float("inf") if timeout is None else timeout - passed) <= 0:
                        return
                    time.sleep(_POLL)
        finally:
            self.forget(waiting)
