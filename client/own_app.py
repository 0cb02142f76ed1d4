"""A user's own ClientApp, by its name; also one that has never heard of blocks and chains."""

from __future__ import annotations

from flwr.clientapp import ClientApp

from perennial.client.both_chains import both_chains
from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import imported


def own_app(name: str) -> ClientApp:
    """Return the app that ``name`` names; it also answers messages of both chains, should the server send them."""
    app = imported("app", name)
    if not isinstance(app, ClientApp):
        raise InputError(f"app {name!r} must be a flwr.clientapp.ClientApp, got {shown(app)}")
    return both_chains(app)
