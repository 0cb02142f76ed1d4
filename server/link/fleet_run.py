"""A run that devices can join: what admits them, what serves them, and the Grid that reaches them.

With stock nodes, Flower's own fleet API is served beside the link, and the Grid reaches both kinds.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.serverapp import Grid

from perennial.server.cohort.patience import Patience
from perennial.server.link.asgi import App
from perennial.server.link.fleet import Fleet, RunFacts
from perennial.server.link.fleet_app import FleetApp, Offer
from perennial.server.link.fleet_grid import FleetGrid
from perennial.server.link.key_folder import Registry
from perennial.server.link.local_grid import take_identity


@dataclass(frozen=True)
class FleetRun:
    """registry: admits nodes by their keys. app: for the public port. finish: ends the run; True: it is completed."""

    registry: Registry
    app: App
    grid: Grid
    finish: Callable[[bool], None]


def open_run(
    config: Mapping[str, str | int | float | bool],
    *,
    keyed: bool,
    bundle: bytes = b"",
    cert: Path | None,
    stop: threading.Event,
    offer: Offer | None = None,
    patience: Patience | None = None,
) -> FleetRun:
    """Return a run that nodes see as ``config``. keyed: nodes need a registered key. cert: the server's, for TLS.

    bundle: of the app, for stock nodes; without one there are none.
    offer: the predictors that devices may fetch.
    patience: when a round has waited long enough; None: it waits for everybody.
    """
    certificate = der(cert) if cert else b""
    if bundle:
        # Only then is anything loaded of Flower but its public names.
        from perennial.server.link.both import open_both

        return open_both(
            config, bundle, keyed=keyed, certificate=certificate, stop=stop, offer=offer, patience=patience
        )
    fleet = Fleet(RunFacts(config), anybody=not keyed, certificate=certificate)
    take_identity(fleet.run.id)
    grid = FleetGrid(fleet, stop=stop, patience=patience)
    return FleetRun(fleet, FleetApp(fleet, offer=offer), grid, lambda _: fleet.finish())


def der(cert: Path) -> bytes:
    """Return the first certificate of a PEM file, which is the server's own, as it goes over the wire."""
    text = cert.read_text()
    end = "-----END CERTIFICATE-----"
    start = text.index("-----BEGIN CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[start : text.index(end, start) + len(end)])
