"""How long a deployed round waits for stragglers: until its quorum is met, and the rest has had a fair time.

Fair is what most devices took before, some more, and a moment at least. A device that is slower now and then is waited
for; one that is silent costs a round no more than that. Pure: seconds are passed in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from flwr.app import ConfigRecord, Message, MessageType

# The share of earlier answers that came within the time which counts, and how many answers are remembered.
_QUANTILE, _REMEMBERED = 0.95, 2000
# Nobody is late within so many seconds.
MOMENT = 1.0


class Patience:
    """Remembers what answers took, for each kind of message by itself.

    fair_time: times what the devices took before; 0: everybody is waited for. quorum: the fraction of the clients asked
    that must answer first. oversample: so many more were asked than are wanted, so that the first ones are enough.
    """

    def __init__(self, fair_time: float = 0.0, quorum: float = 0.0, oversample: float = 0.0) -> None:
        self._times, self._quorum, self._wanted = fair_time, quorum, 1.0 / (1.0 + oversample)
        self._took: dict[str, deque[float]] = {}

    def watch(self, messages: Iterable[Message]) -> Watch:
        """Return the watch over an exchange that begins now."""
        listed = list(messages)
        kind = listed[0].metadata.message_type if listed else ""
        # Who a node is has no quorum.
        quorum = 0.0 if kind == MessageType.QUERY else self._quorum
        enough = self._wanted if kind == MessageType.TRAIN else 1.0
        clients = {one.metadata.message_id: _clients(one) for one in listed}
        took = self._took.setdefault(kind, deque(maxlen=_REMEMBERED))
        return Watch(clients, quorum, enough, self.fair(kind), took, from_last=kind == MessageType.QUERY)

    def fair(self, kind: str) -> float:
        """Return the seconds in which an answer of this kind may come; without end before the first one came."""
        took = sorted(self._took.get(kind, ()))
        if not self._times or not took:
            return math.inf
        return max(MOMENT, self._times * took[math.ceil(_QUANTILE * len(took)) - 1])


class Watch:
    """Counts the answers to one exchange. ``took``: where it notes how long each of them took.

    from_last: the fair time begins anew with each answer. Of a fleet that comes at once the first ones are asked alone,
    and what they took says nothing of the thousand that are asked next.
    """

    def __init__(
        self,
        clients: Mapping[str, int],
        quorum: float,
        enough: float,
        fair: float,
        took: deque[float],
        *,
        from_last: bool = False,
    ) -> None:
        self._clients, asked = clients, sum(clients.values())
        self._from_last, self._begun = from_last, 0.0
        self._quorum, self._enough = math.ceil(quorum * asked - 1e-9), math.ceil(enough * asked - 1e-9)
        self._fair, self._took, self._heard = fair, took, 0

    def heard(self, reply: Message, seconds: float) -> None:
        """Note a reply, ``seconds`` after the exchange began; an error is an answer of nobody."""
        if not reply.has_error():
            self._heard += self._clients.get(reply.metadata.reply_to_message_id, 0)
            self._took.append(seconds)
        if self._from_last:
            self._begun = seconds

    def left(self, seconds: float) -> float:
        """Return how long to wait yet, ``seconds`` after the exchange began."""
        if self._heard >= self._enough:
            return 0.0
        return max(0.0, self._begun + self._fair - seconds) if self._heard >= self._quorum else math.inf


def _clients(message: Message) -> int:
    """Return for how many clients a message is; a message that names none is for one."""
    order = message.content.get("order")
    named = order.get("clients") if isinstance(order, ConfigRecord) else None
    return len(named) if isinstance(named, list) else 1
