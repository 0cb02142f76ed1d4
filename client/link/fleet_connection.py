"""The device's side of the link: it proves its key once, then waits for orders and answers them, on one connection.

Nothing of Flower but its messages.
"""

from __future__ import annotations

import functools
import json
import ssl
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Context, Error, Message, Metadata, RecordDict, UserConfig

from perennial.client.link.failures import OtherVersion, Refused, Unreachable
from perennial.client.link.http import Http, Response, Stale
from perennial.common.command.address import parse_address
from perennial.common.command.errors import shown
from perennial.common.wire import link
from perennial.common.wire.frame import FrameError, Packer, unpack
from perennial.common.wire.link import Proof, Token, signed_text

_SECONDS, _SECONDS_TO_LEAVE = 30.0, 2.0
# The server lets a reply wait before it takes it in.
_SECONDS_TO_REPLY = 60.0
# A session is renewed before it ends.
_OLD = 0.8
# The server's own id in Flower's messages.
_SERVER_ID = 1


class NotHere(Exception):
    """There is a server, and it does not speak the link: a stock SuperLink, perhaps."""


@dataclass(frozen=True)
class Handed:
    """An order as it came."""

    body: bytes


@dataclass(frozen=True)
class _Session:
    id: str
    secret: bytes
    node: int
    run: int
    config: UserConfig
    renew_at: float


class FleetConnection:
    """A connection to a flower-server as one node. Every method raises ``Refused`` or ``Unreachable``.

    waits: ``pull`` waits for an order. beats_idle: a node without an order need not say that it lives.
    """

    waits, beats_idle, beat_every = True, False, link.BEAT_EVERY

    def __init__(self, address: str, *, ca: Path | None, key: EllipticCurvePrivateKey | None) -> None:
        """``ca`` None: plain HTTP. ``key`` None: a new key, which the server may admit or refuse."""
        self._key = key or generate_private_key(SECP256R1())
        host, port = parse_address(address)
        self._http = Http(host, port, _tls(ca, ca.stat().st_mtime_ns) if ca else None)
        # A beat must not come between another request and its answer.
        self._lock = threading.Lock()
        self._greeting: dict[str, Any] | None = None
        self._session: _Session | None = None
        self._number = 0
        self._context: Context | None = None

    def greet(self) -> None:
        """Ask whether the server speaks the link; ``NotHere`` if it does not."""
        with self._lock:
            self._greeting = self._greet()

    def activate(self) -> int:
        """Begin a session; return the node id."""
        with self._lock:
            self._session = self._begin()
            return self._session.node

    def heartbeat(self) -> None:
        self._post(link.BEAT)

    def pull(self) -> Handed | None:
        """Return the next order; wait for it, or for None. One that was lost on the way comes again."""
        answer = self._post(link.WAIT, seconds=link.PATIENCE + 15.0)
        return Handed(answer.body) if answer.status == 200 else None

    def fetch(self, order: Handed, node_config: UserConfig) -> tuple[Message, Context]:
        """Return the order's message and context."""
        try:
            said, content = unpack(order.body, len(order.body))
            if isinstance(content, Error):
                raise FrameError("an order is no error")
            message = Message(content, metadata=self._metadata(said))  # type: ignore[call-overload]
        except (FrameError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"the order cannot be read: {error}", gone=False) from error
        return message, self._context_of_run(node_config)

    def push(self, reply: Message, seconds: float) -> None:
        """Send the reply; may be called again after a failure."""
        content = reply.error if reply.has_error() else reply.content
        pieces = Packer().pack({}, content)
        answer = self._post(link.REPLY + reply.metadata.reply_to_message_id, pieces, seconds=_SECONDS_TO_REPLY)
        if answer.status == 409:
            raise Unreachable("a request with the same reply is under way", retry=1.0)

    def published(self, path: str) -> bytes | None:
        """Return what the server offers of predictors; None: nothing that is new."""
        answer = self._post(path, seconds=_SECONDS_TO_REPLY)
        return answer.body if answer.status == 200 else None

    def close(self, *, unregister: bool) -> None:
        """Go offline and disconnect; never raises."""
        # Whoever holds the lock is a beat, on a link that is dead perhaps.
        if self._session and self._lock.acquire(timeout=_SECONDS_TO_LEAVE):
            try:
                self._send(link.LEAVE, (), _SECONDS_TO_LEAVE)
            except Exception:  # The server is away; it marks the node offline by itself.
                pass
            finally:
                self._lock.release()
        self._session = None
        self._http.close()

    # --- Requests -----------------------------------------------------------------------------------------------------

    def _post(self, path: str, pieces: Sequence[bytes] = (), *, seconds: float = _SECONDS) -> Response:
        with self._lock:
            if self._session and time.monotonic() > self._session.renew_at:
                self._session = self._begin()
            try:
                answer = self._send(path, pieces, seconds)
            except Stale:
                # The server, or somebody in between, has closed a connection that rested. Nothing is wrong.
                answer = self._send(path, pieces, seconds)
        return _checked(answer)

    def _send(self, path: str, pieces: Sequence[bytes], seconds: float) -> Response:
        session = self._session
        if session is None:
            raise Refused("this node is not connected", gone=True)
        self._number += 1
        length, digest = sum(map(len, pieces)), link.digest(*pieces)
        token = Token.make(session.id, session.secret, self._number, "POST", path, length, digest)
        return self._http.request("POST", path, {"authorization": token.header()}, pieces, seconds=seconds)

    def _begin(self) -> _Session:
        greeting, self._greeting = self._greeting, None
        try:
            greeting = greeting or self._greet()
        except Stale:
            greeting = self._greet()
        public = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        text = signed_text(greeting["challenge"], self._http.certificate)
        proof = Proof(public, greeting["challenge"], self._key.sign(text, ECDSA(SHA256())))
        headers = {"authorization": proof.header()}
        said = _json(_checked(self._http.request("POST", link.SESSION, headers, seconds=_SECONDS)))
        self._number = 0
        try:
            return _Session(
                said["session"],
                bytes.fromhex(said["secret"]),
                said["node"],
                said["run"],
                said["config"],
                time.monotonic() + _OLD * said["seconds"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable("the server's answer is no session; is it a flower-server?") from error

    def _greet(self) -> dict[str, Any]:
        headers = {link.VERSION_HEADER: str(link.VERSION)}
        answer = self._http.request("GET", link.GREET, headers, seconds=_SECONDS)
        if answer.status in (404, 405):
            raise NotHere
        if answer.status == 426:
            raise OtherVersion(answer.text())
        greeting = _json(_checked(answer))
        if greeting.get("link") != link.VERSION or not isinstance(greeting.get("challenge"), str):
            raise OtherVersion(
                f"the server speaks link {shown(greeting.get('link'))}, this device {link.VERSION}; install the same "
                "Perennial on both"
            )
        return greeting

    # --- Flower's messages --------------------------------------------------------------------------------------------

    def _metadata(self, said: dict[str, Any]) -> Metadata:
        if self._session is None:
            raise Refused("this node is not connected", gone=True)
        return Metadata(
            run_id=self._session.run,
            message_id=said["id"],
            src_node_id=_SERVER_ID,
            dst_node_id=self._session.node,
            reply_to_message_id="",
            group_id=said["group"],
            # By this device's clock, which may be another than the server's.
            created_at=time.time(),
            ttl=float(said["ttl"]),
            message_type=said["type"],
        )

    def _context_of_run(self, node_config: UserConfig) -> Context:
        """Return the run's context, whose state lives as long as the run and this connection."""
        session = self._session
        assert session is not None
        if self._context is None or self._context.run_id != session.run:
            self._context = Context(session.run, session.node, node_config, RecordDict(), session.config)
        return self._context


@functools.lru_cache(maxsize=4)
def _tls(ca: Path, _changed: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def _checked(answer: Response) -> Response:
    """Return an answer that is a success, or a wait that another one has taken the place of."""
    if answer.status < 300 or answer.status == 409:
        return answer
    retry = answer.headers.get("retry-after", "")
    if answer.status >= 500 or retry:
        raise Unreachable(answer.text(), retry=float(retry) if retry.isdigit() else 0.0)
    raise Refused(answer.text(), gone=answer.status == 401)


def _json(answer: Response) -> dict[str, Any]:
    try:
        said = json.loads(answer.body)
    except ValueError as error:
        raise Unreachable("the server's answer is no JSON; is it a flower-server?") from error
    if not isinstance(said, dict):
        raise Unreachable("the server's answer is no object; is it a flower-server?")
    return said
