"""Flower's own commands, for the stock way: where they are, and the environment that they need."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


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
