"""What devices do that the server knows and that have gone bad: each attack goes on until its time is over.

An attack returns one line that says what came of it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.attacks import ROUTES, SECONDS, Target, said
from benchmarks.devices import Devices
from benchmarks.processes import wait_until
from perennial.client.link.failures import Refused, Unreachable
from perennial.client.link.fleet_connection import FleetConnection
from perennial.common.wire import link
from perennial.common.wire.link import Proof, Token, signed_text

# Seconds after which a challenge is too old.
_LIFE = 62.0


@dataclass
class Insider:
    """A device that the server knows and that has gone bad. twin: lets its key come from a second machine.

    challenge: one that the server gave, and when.
    """

    target: Target
    connection: FleetConnection
    twin: Callable[[], Devices]
    challenge: tuple[str, float]


def orders_of_others(insider: Insider, until: float) -> str:
    """A device of ours answers the orders of others, whose ids it can guess."""
    got = Counter[str]()
    while time.monotonic() < until:
        mine = [path for path, _ in insider.target.recorded if path.startswith(link.REPLY)][-1]
        name, _, last = mine.removeprefix(link.REPLY).rpartition("-")
        for other in range(int(last) - 20, int(last) + 20):
            if other == int(last) or time.monotonic() > until:
                continue
            try:
                insider.connection._post(f"{link.REPLY}{name}-{other}", [b"x" * 100])
                got["taken"] += 1
            except (Refused, Unreachable) as error:
                got[str(error)] += 1
            time.sleep(0.1)
    return said(got)


def out_of_date(insider: Insider, until: float) -> str:
    """Proofs that were used, are too old or are of another server, and tokens of a session that has ended."""
    connection, target = insider.connection, insider.target
    ended = connection._session
    assert ended
    connection._session = replace(ended, renew_at=0.0)
    wait_until(lambda: connection._session and connection._session.id != ended.id, 60, "another session")
    used = [token for path, token in target.recorded if path == link.SESSION][-1]
    challenge, given = insider.challenge
    time.sleep(max(0.0, given + _LIFE - time.monotonic()))
    certificate = connection._http.certificate
    proofs = {
        "used": used,
        "too old": _proof(connection, challenge, certificate),
        "of another server": _proof(connection, used.split(" ")[2], b"another certificate"),
    }
    got = Counter[str]()
    for number in count(1):
        token = Token.make(ended.id, ended.secret, 2**30 + number, "POST", link.WAIT, 0, link.NOTHING)
        for path, what, header in (
            *((link.SESSION, f"a proof {name}", proof) for name, proof in proofs.items()),
            (link.WAIT, "a token of an ended session", token.header()),
        ):
            head = f"POST {path} HTTP/1.1\r\ncontent-length: 0\r\nauthorization: {header}"
            got[f"{target.ask(head)[0]} for {what}"] += 1
        if time.monotonic() > until:
            return said(got)
    raise AssertionError("count() never ends")


def _proof(connection: FleetConnection, challenge: str, certificate: bytes) -> str:
    public = connection._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Proof(public, challenge, connection._key.sign(signed_text(challenge, certificate), ECDSA(SHA256()))).header()


def unknown_routes_of_a_device(insider: Insider, until: float) -> str:
    """20,000 unknown routes on the connection of a device of ours, which needs no new TLS for each; however long."""
    got, asked, begun = Counter[str](), 0, time.monotonic()
    while asked < ROUTES:
        # It answers its orders in between: what its own silence costs a round is no news.
        with insider.connection._lock, contextlib.suppress(Refused, Unreachable):
            for number in range(asked, min(asked + 100, ROUTES)):
                asked += 1
                head = "GET", f"/v1/fleet/route-{number}", dict[str, str]()
                got[str(insider.connection._http.request(*head, seconds=SECONDS).status)] += 1
        time.sleep(0.001)
    return f"{said(got)} in {time.monotonic() - begun:.0f} s"


def one_key_twice(insider: Insider, until: float) -> str:
    """The key of a device of ours on a second machine, too."""
    twin = insider.twin()
    time.sleep(max(0.0, until - time.monotonic()))
    twin.stop.set()
    return f"the second machine answered {twin.answered} orders, and was sent away {twin.dropped + twin.away} times"


INSIDERS: dict[str, Callable[[Insider, float], str]] = {
    "answers to orders of other devices": orders_of_others,
    "proofs and sessions out of date": out_of_date,
    "20,000 unknown routes of a device": unknown_routes_of_a_device,
    "one key on two machines": one_key_twice,
}
