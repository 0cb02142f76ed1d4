"""Flower as it is installed: its version, its own commands, and the environment that they need."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from perennial.common.command.errors import RunError

# The versions whose internals server/link and client/link are tested with.
VERSIONS = ("1.41", "1.42")
# Below those that systems give away by themselves (Linux: from 32768 on). Flower's processes bind a port seconds after
# it was chosen for them; one of the system's might be the end of somebody's connection by then.
_PORTS = range(20_000, 32_000)
_TRIED_PORTS = 200


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
    """Return a port of loopback that nobody listens on, for a process that is about to be started."""
    # A generator of its own: strategies may draw their nodes from the one that all share.
    for port in random.SystemRandom().sample(_PORTS, _TRIED_PORTS):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RunError(f"{_TRIED_PORTS} ports of loopback were tried, and none was free; end what listens on them")


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to end, and make it after ``seconds``."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def lacking(module: str) -> str:
    """Return '' if ``module`` finds every name of Flower's that it imports; else the warning that it does not."""
    try:
        import_module(module)
    except (ImportError, AttributeError) as error:
        return (
            f"flwr {version('flwr')} lacks a name that the quick runtime needs ({error}): going the stock way, with "
            f"rounds of several seconds; `pip install 'flwr=={VERSIONS[-1]}.*'` brings the quick way back"
        )
    return ""


def untested() -> str:
    """Return '' for a flwr that the quick runtime is tested with, else a word of caution."""
    found = version("flwr")
    if ".".join(found.split(".")[:2]) in VERSIONS:
        return ""
    return f"flwr {found} is tried: the quick runtime is tested with {' and '.join(VERSIONS)}"


def use_stock(module: str, name: str) -> bool:
    """Tell whether a command must go the stock way, since the quick one's ``module`` does not fit this flwr."""
    problem = lacking(module)
    if warning := problem or untested():
        print(f"{name}: {warning}", file=sys.stderr, flush=True)
    return bool(problem)
