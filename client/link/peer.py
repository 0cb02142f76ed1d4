"""A server as a node sees it, whichever way leads there."""

from __future__ import annotations

from typing import Any, Protocol

from flwr.app import Context, Message, UserConfig


class Server(Protocol):
    """What a node needs of the server. ``perennial.client.link`` has two that fill it.

    An order is whatever ``pull`` returns, for ``fetch``; None: there is none.
    waits: ``pull`` waits for an order. beats_idle: heartbeats are due also while no order is in hand, and beat_every:
    after so many seconds each.
    """

    @property
    def waits(self) -> bool: ...
    @property
    def beats_idle(self) -> bool: ...
    @property
    def beat_every(self) -> float: ...

    def activate(self) -> int: ...
    def heartbeat(self) -> None: ...
    def pull(self) -> Any: ...
    def fetch(self, order: Any, node_config: UserConfig) -> tuple[Message, Context]: ...
    def push(self, reply: Message, seconds: float) -> None: ...
    def published(self, path: str) -> bytes | None:
        """Return what common/wire/offer.py says of ``path``; None: there is nothing new."""

    def close(self, *, unregister: bool) -> None: ...
