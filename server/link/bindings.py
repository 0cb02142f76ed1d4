"""Which clients a node key is for, where its file says so: ``ecdsa-… AAAA… clients=0-3,7 a comment``.

A key with such a list may claim nobody else's client, and what one list names no key without it may claim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# A list is as long as a gateway's, and no typing error fills the memory.
_MOST = 100_000
_PART = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
OPTION = "clients="


class Bindings:
    """The clients of keys, by the ids of their nodes. Two keys may share one: a gateway, and another in its stead."""

    def __init__(self) -> None:
        self._clients: dict[int, frozenset[int]] = {}
        # How many lists name a client.
        self._named: Counter[int] = Counter()

    def bind(self, node: int, clients: frozenset[int] | None) -> None:
        """Let the node claim ``clients`` alone; None: whatever is on no list."""
        for client in self._clients.pop(node, ()):
            self._named[client] -= 1
            if not self._named[client]:
                del self._named[client]
        if clients is not None:
            self._clients[node] = clients
            self._named.update(clients)

    def problem(self, node: int, clients: Iterable[int]) -> str:
        """Return what is wrong with a node that claims ``clients``; '' if nothing is."""
        own = self._clients.get(node)
        if own is not None and (strange := sorted(set(clients) - own)):
            return f"it claims client {strange[0]}, and its key is for {_listed(own)}"
        if own is None and (others := sorted(client for client in clients if client in self._named)):
            return f"client {others[0]} is for another key"
        return ""


def read_clients(text: str) -> frozenset[int]:
    """Return the clients of a list such as "0-3,7"; a ValueError says what is wrong with it."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"{OPTION}{text[:80]} is no list of clients; write it as {OPTION}0-3,7")
        if len(found) + last - first >= _MOST:
            raise ValueError(f"{OPTION}{text[:80]} names more than {_MOST:,} clients")
        found.update(range(first, last + 1))
    return frozenset(found)


def _listed(clients: frozenset[int]) -> str:
    ordered = sorted(clients)
    shown = ", ".join(map(str, ordered[:8]))
    return f"{'clients' if len(ordered) > 1 else 'client'} {shown}{', …' if len(ordered) > 8 else ''} alone"
