"""Who a device is: challenges that cost nothing to make, signatures over them, and sessions that expire.

Pure: the time is passed in. What a stranger sends leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from perennial.common.wire.link import Proof, Token, signed_text

# Seconds for which a challenge can be signed, and a session lasts.
_CHALLENGE_LIFE, _SESSION_LIFE = 60.0, 6 * 3600.0
# A device may begin so many sessions at once, then one in so many seconds: two machines with one key take turns.
_SESSIONS_AT_ONCE, _SECONDS_FOR_A_SESSION = 5, 10.0
# Requests of one session: so many at once, then so many a second.
_REQUESTS_AT_ONCE, _REQUESTS_A_SECOND = 60.0, 20.0
_MOST_KEY = 512
# Of nodes without a registered key, where those are admitted.
_MOST_STRANGERS = 20_000


class Refusal(Exception):
    """A request that is not served: the HTTP status, why, and after how many seconds to try again (0: never)."""

    def __init__(self, status: int, reason: str, retry: float = 0.0) -> None:
        super().__init__(reason)
        self.status, self.retry = status, retry


@dataclass
class Bucket:
    """Lets ``most`` through at once, and ``rate`` a second."""

    most: float
    rate: float
    left: float = field(init=False)
    since: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.most

    def has(self, now: float) -> bool:
        """Return whether one more may pass."""
        self.left = min(self.most, self.left + (now - self.since) * self.rate)
        self.since = now
        return self.left >= 1.0

    def take(self, now: float) -> bool:
        """Let one pass, if it may."""
        if not self.has(now):
            return False
        self.left -= 1.0
        return True


class Challenges:
    """Challenges that carry their own time and seal, so that none is kept before it was signed by a known key."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._signed: set[str] = set()
        self._order: deque[tuple[float, str]] = deque()

    def make(self, now: float) -> str:
        text = f"{int(now * 1000)}.{secrets.token_hex(16)}"
        return f"{text}.{self._seal(text)}"

    def check(self, challenge: str, now: float) -> None:
        """Refuse what this server did not make, or not lately, or what was signed before."""
        text, _, seal = challenge.rpartition(".")
        if not hmac.compare_digest(self._seal(text).encode(), seal.encode()):
            raise Refusal(401, "this challenge is not this server's; greet it again")
        if now - int(text.partition(".")[0]) / 1000 > _CHALLENGE_LIFE:
            raise Refusal(401, "the challenge is too old; greet again")
        if challenge in self._signed:
            raise Refusal(401, "the challenge was signed before; greet again")

    def use(self, challenge: str, now: float) -> None:
        """Take a challenge that a known key has signed out of use."""
        while self._order and now - self._order[0][0] > _CHALLENGE_LIFE:
            self._signed.discard(self._order.popleft()[1])
        self._signed.add(challenge)
        self._order.append((now, challenge))

    def _seal(self, text: str) -> str:
        return hmac.digest(self._secret, text.encode(), "sha256").hex()


@dataclass(eq=False)
class Session:
    """A device that has proved its key. number: of its last request."""

    id: str
    secret: bytes
    node: int
    expires: float
    number: int = 0
    pace: Bucket = field(default_factory=lambda: Bucket(_REQUESTS_AT_ONCE, _REQUESTS_A_SECOND))


class Keys:
    """The keys that may connect, and the sessions of those that have. certificate: the server's own (DER)."""

    def __init__(self, *, anybody: bool = False, certificate: bytes = b"") -> None:
        self._anybody, self._certificate = anybody, certificate
        self._keys: dict[bytes, EllipticCurvePublicKey] = {}
        self._revoked: set[int] = set()
        self._paces: dict[int, Bucket] = {}
        self._sessions: dict[str, Session] = {}
        self._of_node: dict[int, Session] = {}
        self._by_node: dict[int, bytes] = {}
        self.challenges = Challenges()

    def register(self, key: EllipticCurvePublicKey) -> int:
        """Admit a key; return the id of its node. A revoked key stays refused until the process ends."""
        coded = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        node = node_id(coded)
        if node in self._revoked:
            raise ValueError("the key was revoked; restart the server, or give the device a new key")
        self._keys[coded], self._by_node[node] = key, coded
        return node

    def revoke(self, node: int) -> None:
        self._revoked.add(node)
        self._keys.pop(self._by_node.pop(node, b""), None)
        self.end(node)

    def open(self, proof: Proof, now: float) -> Session:
        """Begin a session; the node's session before it ends. Raises ``Refusal``."""
        self.challenges.check(proof.challenge, now)
        key = self._keys.get(proof.key) or self._stranger(proof.key)
        node = node_id(proof.key)
        try:
            key.verify(proof.signature, signed_text(proof.challenge, self._certificate), ECDSA(SHA256()))
        except InvalidSignature:
            raise Refusal(401, "the signature is not of this challenge, this server and this key") from None
        self.challenges.use(proof.challenge, now)
        pace = self._paces.setdefault(node, Bucket(_SESSIONS_AT_ONCE, 1 / _SECONDS_FOR_A_SESSION))
        if not pace.take(now):
            raise Refusal(
                429, "this key begins session after session; is it on two machines?", retry=_SECONDS_FOR_A_SESSION
            )
        self.end(node)
        session = Session(secrets.token_hex(16), secrets.token_bytes(32), node, now + _SESSION_LIFE)
        self._sessions[session.id] = self._of_node[node] = session
        return session

    def check(self, header: str, method: str, path: str, length: int, now: float) -> tuple[Session, Token]:
        """Return the session of a request, whose number is used up by that. Raises ``Refusal`` and ``TokenError``."""
        token = Token.read(header)
        session = self._sessions.get(token.session)
        if session is None or now > session.expires:
            raise Refusal(401, "no such session (any more); begin a new one")
        right = Token.make(session.id, session.secret, token.number, method, path, length, token.body)
        if not hmac.compare_digest(right.mac.encode(), token.mac.encode()):
            raise Refusal(401, "the token is not of this request")
        if token.number <= session.number:
            raise Refusal(401, "the number of this request was used before")
        session.number = token.number
        if not session.pace.take(now):
            raise Refusal(429, "too many requests of this node", retry=5.0)
        return session, token

    def end(self, node: int) -> None:
        """End the session of a node; one without a registered key leaves nothing behind."""
        if session := self._of_node.pop(node, None):
            del self._sessions[session.id]
        if self._anybody and node not in self._by_node:
            self._paces.pop(node, None)

    def lives(self, session: Session) -> bool:
        """Return whether the session is still its node's."""
        return self._sessions.get(session.id) is session

    def __len__(self) -> int:
        return len(self._sessions)

    def _stranger(self, coded: bytes) -> EllipticCurvePublicKey:
        if not self._anybody or node_id(coded) in self._revoked:
            raise Refusal(403, "this key is not admitted here")
        if len(self._sessions) >= _MOST_STRANGERS:
            raise Refusal(503, "too many nodes without a registered key are here", retry=60.0)
        try:
            key = load_der_public_key(coded) if len(coded) <= _MOST_KEY else None
        except Exception:  # whatever the parser says of what a stranger sends
            key = None
        if not isinstance(key, EllipticCurvePublicKey):
            raise Refusal(400, "this is no ECDSA key")
        return key


def node_id(key: bytes) -> int:
    """Return the id of the node with this key (DER): the same in every run. The ids below 2 are Flower's own."""
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % (2**63 - 2) + 2
