"""Which way to a server: the link, or Flower's fleet API if it is a stock SuperLink."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from perennial.client.link.fleet_connection import FleetConnection, NotHere
from perennial.client.link.peer import Server


def connect(address: str, *, ca: Path | None, key: EllipticCurvePrivateKey | None) -> Server:
    """Return a connection to whatever server there is. Raises ``Refused`` or ``Unreachable``."""
    fleet = FleetConnection(address, ca=ca, key=key)
    try:
        fleet.greet()
    except NotHere:
        fleet.close(unregister=False)
        # Much is imported for it that a device of ours does not need.
        from perennial.client.link.connection import Connection

        return Connection(address, ca=ca, key=key)
    return fleet
