"""The link between a server and its devices, version 1: routes, and what proves who sends a request.

    GET  GREET     what the server speaks, and a challenge; another version is answered 426 and a line that says so
    POST SESSION   the device signs the challenge, once; it gets a token, a secret and the run's configuration
    POST WAIT      answered with an order and its models, or with 204 after PATIENCE seconds; counts as a heartbeat
    POST REPLY/id  the answer to the order of that id; a success is the confirmation
    POST BEAT      the device works on an order and lives
    POST LEAVE     the device goes

Whoever sends is known from the head of a request, before any of its body is read. In a session the ``authorization``
carries the token, a number that is used once, the hash of the body, and a MAC over all of these, method and route.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass

VERSION = 1
GREET = "/v1/link"
SESSION, WAIT, BEAT, LEAVE = (f"{GREET}/{name}" for name in ("session", "wait", "beat", "leave"))
REPLY = f"{GREET}/reply/"
# What a device speaks, in the greeting.
VERSION_HEADER = "perennial-link"
# Seconds that a wait lasts at most; shorter than what routers allow a silent connection.
PATIENCE = 45.0
# Seconds between two beats of a device that works.
BEAT_EVERY = 10.0
# A body that is longer is sent only once the server asks for it (100-continue).
MOST_UNASKED = 2**14

_SCHEME, _KEY_SCHEME = "Perennial", "Perennial-Key"
_MOST_NUMBER = 2**53


class TokenError(ValueError):
    """An ``authorization`` that is none."""


@dataclass(frozen=True)
class Token:
    """What a request in a session carries. number: grows from request to request. body: its SHA-256, in hex."""

    session: str
    number: int
    body: str
    mac: str

    def header(self) -> str:
        return f"{_SCHEME} {self.session} {self.number} {self.body} {self.mac}"

    @classmethod
    def read(cls, header: str) -> Token:
        words = header.split(" ")
        if len(words) != 5 or words[0] != _SCHEME or not words[2].isascii() or not words[2].isdigit():
            raise TokenError("no token of a session")
        # Before it is made a number, which takes long for a million digits.
        if len(words[2]) > 16 or int(words[2]) > _MOST_NUMBER:
            raise TokenError("no number of a request")
        return cls(words[1], int(words[2]), words[3], words[4])

    @classmethod
    def make(cls, session: str, secret: bytes, number: int, method: str, path: str, length: int, body: str) -> Token:
        """Return the token of a request whose body has ``length`` bytes and the hash ``body``."""
        text = f"{method}\n{path}\n{number}\n{length}\n{body}".encode()
        return cls(session, number, body, hmac.digest(secret, text, "sha256").hex())


@dataclass(frozen=True)
class Proof:
    """What a device asks for a session with. key: its public key (DER), challenge: the server's, signed."""

    key: bytes
    challenge: str
    signature: bytes

    def header(self) -> str:
        return f"{_KEY_SCHEME} {b64encode(self.key).decode()} {self.challenge} {b64encode(self.signature).decode()}"

    @classmethod
    def read(cls, header: str) -> Proof:
        words = header.split(" ")
        if len(words) != 4 or words[0] != _KEY_SCHEME:
            raise TokenError("no proof of a key")
        try:
            return cls(b64decode(words[1], validate=True), words[2], b64decode(words[3], validate=True))
        except ValueError as error:
            raise TokenError("no proof of a key") from error


def signed_text(challenge: str, certificate: bytes) -> bytes:
    """Return what a device signs: it holds for one challenge, one purpose and one server.

    certificate: the server's (DER), as the device sees it; empty without TLS. A server that passes the challenge of
    another one on gets a signature that the other one does not take.
    """
    seen = hashlib.sha256(certificate).hexdigest() if certificate else ""
    return f"perennial link {VERSION}\nPOST\n{SESSION}\n{challenge}\n{seen}".encode()


def digest(*pieces: bytes) -> str:
    """Return the SHA-256 of a body in pieces, in hex."""
    summed = hashlib.sha256()
    for piece in pieces:
        summed.update(piece)
    return summed.hexdigest()


NOTHING = digest()
