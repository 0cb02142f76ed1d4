"""Who may come in by the public port: so many connections, so many strangers, and so many from one address, at a pace.

Strangers are those who have not proved a key yet; all begin as such. Setting up TLS costs a server a millisecond, so
strangers are let in one after the other, each address in its turn. Those who wait cost a file and nothing else.
Pure: the time is passed in.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from perennial.server.link.fleet_keys import Bucket

# Strangers that are let in: in all and from one address, within a second, and at the same time.
_A_SECOND, _A_SECOND_OF_ONE = 400.0, 200.0
_AT_ONCE, _AT_ONCE_OF_ONE = 512, 256
# Seconds that somebody waits outside at most.
_PATIENCE = 60.0
_MOST_PACES = 4096

Socket = TypeVar("Socket")


@dataclass(eq=False)
class Guest(Generic[Socket]):
    """A connection. It waits outside, is a stranger inside, then perhaps known, then gone."""

    address: str
    socket: Socket
    since: float
    inside: bool = False
    known: bool = False
    gone: bool = False


class _Tally:
    """How many there are of each, and in all."""

    def __init__(self) -> None:
        self.total, self.of = 0, Counter[str]()

    def add(self, address: str, one: int) -> None:
        self.total += one
        self.of[address] += one
        if not self.of[address]:
            del self.of[address]


class Door(Generic[Socket]):
    """Counts guests. ``most``: files that connections may take in all."""

    def __init__(self, most: int) -> None:
        self._most, self._most_strangers, self._most_of_one = most, most // 2, most // 4
        self.count = 0
        self._strangers, self._inside = _Tally(), _Tally()
        self._waiting: OrderedDict[str, deque[Guest[Socket]]] = OrderedDict()
        self._pace = Bucket(_A_SECOND, _A_SECOND)
        self._paces: OrderedDict[str, Bucket] = OrderedDict()

    def knock(self, host: str, socket: Socket, now: float) -> Guest[Socket] | None:
        """Return a guest who waits to be let in; None: there is no room, not even outside."""
        address = place(host)
        if (
            self.count >= self._most
            or self._strangers.total >= self._most_strangers
            or self._strangers.of[address] >= self._most_of_one
        ):
            return None
        guest = Guest(address, socket, now)
        self.count += 1
        self._strangers.add(address, 1)
        self._waiting.setdefault(address, deque()).append(guest)
        return guest

    def let_in(self, now: float) -> tuple[list[Guest[Socket]], list[Guest[Socket]]]:
        """Return those who may come in now, and those who have waited too long and are gone by that."""
        inside: list[Guest[Socket]] = []
        late: list[Guest[Socket]] = []
        # Every address has its turn before one has its second.
        passed_over = 0
        while self._waiting and passed_over < len(self._waiting):
            address, queue = self._waiting.popitem(last=False)
            while queue and (queue[0].gone or now - queue[0].since > _PATIENCE):
                guest = queue.popleft()
                if not guest.gone:
                    late.append(guest)
                    self.leave(guest)
            if not queue:
                continue
            self._waiting[address] = queue
            if not self._may_enter(address, now):
                passed_over += 1
                continue
            passed_over = 0
            guest = queue.popleft()
            guest.inside = True
            self._inside.add(address, 1)
            inside.append(guest)
        return inside, late

    def waits(self) -> bool:
        """Return whether somebody waits outside."""
        return bool(self._waiting)

    def empty(self) -> list[Socket]:
        """Return the connections of all who wait outside, for good."""
        guests = [guest for queue in self._waiting.values() for guest in queue]
        self._waiting.clear()
        return [guest.socket for guest in guests]

    def meet(self, guest: Guest[Socket]) -> None:
        """Note that a guest has proved who it is: it is no stranger any more."""
        if not guest.known and not guest.gone:
            guest.known = True
            self._forget_stranger(guest)

    def leave(self, guest: Guest[Socket]) -> None:
        """Note that a connection is over; once is enough."""
        if not guest.gone:
            guest.gone = True
            self.count -= 1
            if not guest.known:
                self._forget_stranger(guest)

    def _may_enter(self, address: str, now: float) -> bool:
        if self._inside.total >= _AT_ONCE or self._inside.of[address] >= _AT_ONCE_OF_ONE:
            return False
        pace = self._paces.setdefault(address, Bucket(_A_SECOND_OF_ONE, _A_SECOND_OF_ONE))
        self._paces.move_to_end(address)
        if len(self._paces) > _MOST_PACES:
            self._paces.popitem(last=False)
        # In this order: who may not come in takes nobody's place.
        return self._pace.has(now) and pace.take(now) and self._pace.take(now)

    def _forget_stranger(self, guest: Guest[Socket]) -> None:
        self._strangers.add(guest.address, -1)
        if guest.inside:
            self._inside.add(guest.address, -1)


def place(host: str) -> str:
    """Return what counts as one address: all of a network of 64 bits belongs to one party."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and not address.ipv4_mapped:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
