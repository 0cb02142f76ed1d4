"""Every internal of flwr that Perennial touches: link, state, reply, grid and routes (server), fleet (client).

Written for flwr 1.41 and used with no other version: a command asks ``matches()`` first, and otherwise goes the stock
way (flower-superlink, flower-supernode, flwr run), which is slower but touches public commands only.
"""

from __future__ import annotations

from importlib.metadata import version

VERSION = "1.41"


def matches() -> bool:
    """Return whether the installed flwr is the one that these modules were written for."""
    return version("flwr").split(".")[:2] == VERSION.split(".")


def mismatch() -> str:
    """Return the warning for an installed flwr that does not match."""
    return (
        f"flwr {version('flwr')} is installed, the quick runtime was written for {VERSION}: going the stock way, "
        f"with rounds of several seconds; `pip install 'flwr=={VERSION}.*'` brings the quick way back"
    )
