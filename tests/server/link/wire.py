"""A device that speaks to the link's application in this process, request by request and without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Array, ArrayRecord, RecordDict

from perennial.common.wire import link
from perennial.common.wire.frame import Packer
from perennial.common.wire.link import Proof, Token, signed_text
from perennial.server.link.asgi import PEER, Peer
from perennial.server.link.fleet import Fleet, RunFacts
from perennial.server.link.fleet_app import FleetApp, Offer
from perennial.server.link.fleet_state import Errand

CONFIG: dict[str, str | int | float | bool] = {"strategy": "mc-psgd", "cycles": 2}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Answered:
    """What came back. ``asked``: whether any of the body was asked for."""

    def __init__(self) -> None:
        self.status, self.body, self.asked = 0, b"", False
        self.headers: dict[str, str] = {}

    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: FleetApp,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    body: list[bytes] | None = None,
    peer: Peer | None = None,
) -> Answered:
    """Send one request. ``body``: its pieces; what is missing of the length that was said never comes."""
    answered, pieces = Answered(), list(body or [])
    length = {"content-length": str(sum(map(len, pieces)))} if pieces else {}
    said = [(name.lower().encode(), value.encode("latin-1")) for name, value in {**length, **(headers or {})}.items()]

    async def receive() -> dict[str, Any]:
        answered.asked = True
        if not pieces:
            await asyncio.Event().wait()
        piece = pieces.pop(0)
        if piece == b"hang up":
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.status = message["status"]
            answered.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answered.body += bytes(message["body"])

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": said}
    await app({**scope, PEER: peer or Peer()}, receive, send)
    return answered


class Device:
    """A node with a key. It makes every request itself, so that tests can make them wrong."""

    def __init__(self, app: FleetApp, key: EllipticCurvePrivateKey | None = None) -> None:
        self.app, self.key, self.peer = app, key or generate_private_key(SECP256R1()), Peer()
        self.session, self.secret, self.number, self.node = "", b"", 0, 0

    async def begin(self, certificate: bytes = b"") -> Answered:
        greeted = await ask(self.app, "GET", link.GREET, peer=self.peer)
        challenge = greeted.json()["challenge"]
        public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        signature = self.key.sign(signed_text(challenge, certificate), ECDSA(SHA256()))
        headers = {"authorization": Proof(public, challenge, signature).header()}
        answered = await ask(self.app, "POST", link.SESSION, headers, peer=self.peer)
        if answered.status == 200:
            said = answered.json()
            self.session, self.secret, self.number = said["session"], bytes.fromhex(said["secret"]), 0
            self.node = said["node"]
        return answered

    def token(self, path: str, *body: bytes, number: int | None = None) -> dict[str, str]:
        self.number += 1
        number = self.number if number is None else number
        length = sum(map(len, body))
        made = Token.make(self.session, self.secret, number, "POST", path, length, link.digest(*body))
        return {"authorization": made.header()}

    async def post(self, path: str, *body: bytes, peer: Peer | None = None) -> Answered:
        return await ask(self.app, "POST", path, self.token(path, *body), body=list(body), peer=peer or self.peer)

    async def wait(self) -> Answered:
        return await self.post(link.WAIT)

    async def reply(self, order: str, *body: bytes) -> Answered:
        return await self.post(f"{link.REPLY}{order}", *body)


def order(node: int, name: str = "order-1", *, room: int = 10_000, size: int = 1000, deadline: float = 1e9) -> Errand:
    record = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    return Errand(name, node, Packer().pack({"id": name}, RecordDict({"mixed": record})), room, deadline)


@asynccontextmanager
async def serving(*, anybody: bool = True, offer: Offer | None = None) -> AsyncIterator[tuple[FleetApp, Fleet, Clock]]:
    """A fleet that is served in this loop, with a clock that the test turns; nothing ticks by itself."""
    clock = Clock()
    fleet = Fleet(RunFacts(CONFIG), anybody=anybody, clock=clock)
    app = FleetApp(fleet, offer=offer)
    fleet.serve(asyncio.get_running_loop(), app.wake, app.hall.leave)
    yield app, fleet, clock
