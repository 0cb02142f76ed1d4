"""One exchange with the nodes of a cohort: send orders, and sort the replies into accepted and rejected."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from flwr.app import ArrayRecord, Message, RecordDict

from perennial.common.wire.orders import Order, write_order
from perennial.common.wire.protocol import ProtocolError
from perennial.common.wire.updates import Losses

Answer = TypeVar("Answer")
_SPARE_SECONDS = 30.0
# Flower's codes for a ClientApp that raised, and for a node that is not there any more.
_RAISED, _LEFT = 2, 5


def life(timeout: float) -> float:
    """Return how long an order is valid for which replies are awaited ``timeout`` seconds.

    Longer: the wait begins when the last order of a cohort is sent, and no order should expire before it ends.
    """
    return timeout + _SPARE_SECONDS


@dataclass(frozen=True)
class Rejection:
    """A node whose clients count for nothing in this exchange, and why.

    bad: it answered, and wrongly. failed: it, or whoever speaks for it, said that it could not. raised: its app raised
    an error. left: it went offline before it had answered.
    """

    node: int
    clients: tuple[int, ...]
    reason: str
    bad: bool = False
    failed: bool = False
    raised: bool = False
    left: bool = False


@dataclass(frozen=True)
class Answered(Generic[Answer]):
    """What an exchange brought. replies: by node, sorted by client, because float sums depend on order.

    messages: those that the replies were in, alike, without their content: what counts of it was read.
    """

    replies: Mapping[int, Answer]
    messages: Mapping[int, Message]
    rejections: tuple[Rejection, ...]


@dataclass
class Exchange(Generic[Answer]):
    """Orders under way. ``read`` checks one reply against its order, or raises ProtocolError.

    far: is given the lowest client of each node that answered, and says which of the answers do not fit the others, and
    why.
    """

    orders: Mapping[int, Order]
    models: Mapping[str, ArrayRecord]
    read: Callable[[RecordDict, Order], Answer]
    message_type: str
    timeout: float
    far: Callable[[Mapping[int, int]], Mapping[int, str]] = lambda clients: {}
    messages: list[Message] = field(default_factory=list)

    def send(self) -> list[Message]:
        """Return the messages, one for each node; the models in them are encoded once."""
        ttl = life(self.timeout)
        self.messages = [
            Message(write_order(order, self.models), node, self.message_type, ttl=ttl, group_id=str(order.server_round))
            for node, order in self.orders.items()
        ]
        return self.messages

    def receive(self, replies: Iterable[Message]) -> Answered[Answer]:
        """Return what the replies say: a node's first answer counts; silence and wrong answers are rejected.

        A reply is let go once it is read, before the next one is asked for.
        """
        # Error replies of a dead node come from the SuperLink's own id: only the message id tells whose they are.
        waiting = {message.metadata.message_id: message.metadata.dst_node_id for message in self.messages}
        accepted: dict[int, Answer] = {}
        kept: dict[int, Message] = {}
        rejected: dict[int, Rejection] = {}
        for message in replies:
            node = waiting.get(message.metadata.reply_to_message_id)
            if node is None or node in accepted or node in rejected:
                continue
            if message.has_error():
                code = message.error.code
                rejected[node] = Rejection(
                    node,
                    self.orders[node].clients,
                    _error_text(message),
                    failed=True,
                    raised=code == _RAISED,
                    left=code == _LEFT,
                )
                continue
            try:
                accepted[node] = self.read(message.content, self.orders[node])
                kept[node] = _bare(message)
            except ProtocolError as error:
                rejected[node] = self._rejection(node, str(error), bad=True)
        for node, reason in self.far({node: self._first_client(node) for node in accepted}).items():
            del accepted[node], kept[node]
            rejected[node] = self._rejection(node, reason, bad=True)
        for node in self.orders.keys() - accepted.keys() - rejected.keys():
            rejected[node] = self._rejection(node, "no reply in time")
        order = sorted(accepted, key=self._first_client)
        return Answered(
            {node: accepted[node] for node in order},
            {node: kept[node] for node in order},
            tuple(rejected[node] for node in sorted(rejected, key=self._first_client)),
        )

    def _first_client(self, node: int) -> int:
        return self.orders[node].clients[0]

    def _rejection(self, node: int, reason: str, *, bad: bool = False) -> Rejection:
        return Rejection(node, self.orders[node].clients, reason, bad)


def cannot_change(before: Answered[Answer] | None, now: Answered[Answer]) -> bool:
    """Tell whether a round that all nodes failed in, twice and by the same errors of their apps, is hopeless."""
    return (
        before is not None
        and not now.replies
        and bool(now.rejections)
        and all(one.raised for one in now.rejections)
        and now.rejections == before.rejections
    )


def _bare(message: Message) -> Message:
    bare = copy.copy(message)
    bare.content = RecordDict()
    return bare


def _error_text(message: Message) -> str:
    reason = (message.error.reason or "").strip().splitlines()
    said = "".join(char if char.isprintable() else "?" for char in reason[-1][:200]) if reason else "no reason given"
    return f"node error {message.error.code}: {said}"


def weights_of(counts: Iterable[Losses], weighting: str) -> list[float]:
    """Return what each reply counts: its clients (every client 1/N), or its examples."""
    return [float(c.num_clients if weighting == "clients" else c.num_examples) for c in counts]
