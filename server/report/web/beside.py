"""The live page beside a run: where it listens, and the process of its own that serves it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from perennial.common.command.address import is_loopback
from perennial.common.command.console import say
from perennial.common.command.errors import InputError, shown
from perennial.server.report.web.following import identity_of

LOOPBACK = "127.0.0.1"
HELP = (
    "serve a page that shows the run while it goes on, on loopback; beyond it, for everybody who reaches it, "
    "with HOST:PORT; 0 as port: any"
)
_LOWEST, _END_SECONDS = 19, 6.0


@contextmanager
def page_beside(address: str | None, folders: Sequence[Path], title: str, *, anew: bool) -> Iterator[None]:
    """Serve the page of the runs in `folders` at `address`, ``[HOST:]PORT``; None: no page.

    anew: runs that are in the folders already are not the ones to show.
    """
    if address is None:
        yield
        return
    host, port = _parse(address)
    with _listening(host, port) as listening:
        task = {
            "title": title,
            "folders": [str(folder.absolute()) for folder in folders],
            "passed": [identity_of(folder) if anew else None for folder in folders],
            "socket": listening.fileno(),
            "hosts": ["localhost", "127.0.0.1", "[::1]", host] if is_loopback(host) else [],
        }
        process = subprocess.Popen(
            # -P: a folder that happens to be called as a module is none of ours.
            [sys.executable, "-P", "-m", "perennial.server.report.web.live", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            # Ctrl-C is for the run, whose end is the page's. (A session of its own might give it a share of the CPU of
            # its own, whatever its priority.)
            process_group=0,
        )
        _rank_last(process.pid)
        shown_host = f"[{host}]" if ":" in host else host
        say(f"page: http://{shown_host}:{listening.getsockname()[1]}/")
    try:
        yield
    finally:
        _end(process)


def _rank_last(pid: int) -> None:
    """Give a process what others leave of the CPU.

    Niceness alone is not enough: the workers of a Ray cluster that somebody else has started are nice too.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the page tell its viewers that the run is over."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not host or not (port.isascii() and port.isdigit()) or int(port) >= 2**16:
        raise InputError(f"--page must be PORT or HOST:PORT, as in 8080, got {shown(address)}")
    return host, int(port)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; beyond loopback it is said that everybody may look."""
    if not is_loopback(host):
        say(f"THE PAGE IS OPEN TO EVERYBODY WHO REACHES {host}: it has no password and no TLS; it shows the run's "
            "settings, scores and nodes, and changes nothing")  # fmt: skip
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise InputError(f"--page: {host}:{port} cannot be listened on: {error.strerror or error}") from error
