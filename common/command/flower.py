"""Flower as it is installed: its version, its own commands, and the environment that they need."""

from __future__ import annotations

import os
import socket
import sys
from importlib.metadata import version
from pathlib import Path

# The version whose internals server/link and client/link were written for.
VERSION = "1.41"


def command(name: str) -> str:
    """Return the path of one of Flower's commands; it is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


def environment(home: Path | None = None) -> dict[str, str]:
    """Return the environment of Flower's processes: quiet, and installing nothing. ``home`` keeps what they note."""
    return {
        **os.environ,
        **({"FLWR_HOME": str(home)} if home else {}),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        # They start each other by name.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
    }


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def matches() -> bool:
    """Return whether the installed flwr is the one that the quick runtime was written for."""
    return version("flwr").split(".")[:2] == VERSION.split(".")


def mismatch() -> str:
    """Return the warning for an installed flwr that does not match."""
    return (
        f"flwr {version('flwr')} is installed, the quick runtime was written for {VERSION}: going the stock way, "
        f"with rounds of several seconds; `pip install 'flwr=={VERSION}.*'` brings the quick way back"
    )
