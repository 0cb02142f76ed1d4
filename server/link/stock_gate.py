"""Who may speak to Flower's own fleet API beside ours: known from the head of a request, before its body is read.

A stock SuperNode signs nothing but the time, for any route and any body, and Flower takes such a signature for five
minutes. Here each is taken once: whoever records one cannot use it again.
"""

from __future__ import annotations

import binascii
import datetime
import time
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from perennial.server.link.asgi import PEER, App, Receive, Scope, Send
from perennial.server.link.gate import Gate, is_open, refuse

_LIFE = float(TIMESTAMP_TOLERANCE + 2 * SYSTEM_TIME_TOLERANCE)
_HEADERS = tuple(
    name.lower().encode() for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
)
_BEGINNINGS = ("/v1/fleet/register-node", "/v1/fleet/activate-node")
_LONGEST = 1024


class Once:
    """Remembers what was used, for as long as it could be used again."""

    def __init__(self, life: float) -> None:
        self._life = life
        self._used: set[object] = set()
        self._order: deque[tuple[float, object]] = deque()

    def use(self, what: object, now: float) -> bool:
        """Return whether this is the first time."""
        while self._order and now - self._order[0][0] > self._life:
            self._used.discard(self._order.popleft()[1])
        if what in self._used:
            return False
        self._used.add(what)
        self._order.append((now, what))
        return True


class StockGate:
    """Passes on the requests of known nodes. ``admits``: whether a public key may come at all."""

    def __init__(self, app: App, admits: Callable[[bytes], bool]) -> None:
        self._gate, self._admits, self._once = Gate(app), admits, Once(_LIFE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_open(scope["path"]) and scope["path"] != "/health":
            if problem := self._problem(scope["path"], dict(scope["headers"])):
                return await refuse(send, problem)
            if (peer := scope.get(PEER)) and not peer.known:
                peer.meet()
        await self._gate(scope, receive, send)

    def _problem(self, path: str, headers: Mapping[bytes, bytes]) -> int:
        """Return the HTTP status to refuse a request with; 0: none."""
        coded, when, signed = (headers.get(name, b"")[:_LONGEST] for name in _HEADERS)
        try:
            key, signature, signed_at = (
                b64decode(coded, validate=True),
                b64decode(signed, validate=True),
                datetime.datetime.fromisoformat(when.decode("ascii")),
            )
            age = (now() - signed_at).total_seconds()
            # Of a signature (r, s) there is a second one (r, -s) that anybody can make of it.
            first, _ = decode_dss_signature(signature)
            fresh = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            if not fresh or not verify_signature(bytes_to_public_key(key), when, signature):
                return 401
        except (ValueError, TypeError, binascii.Error):
            return 401
        if not self._admits(key):
            # To a node that was known this says that it should begin anew, which is then refused for good.
            return 403 if path in _BEGINNINGS else 401
        return 0 if self._once.use((key, when, first), time.monotonic()) else 401
