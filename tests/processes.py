"""Processes under test: commands run as a user does, the workers of this process, and what a kill leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from benchmarks.processes import command_line, family, wait_until
from perennial.common.command import flower

MARK = "PERENNIAL_CHAOS"
COMMAND = flower.command("flower-simulation")


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a subprocess: quiet, and tied to no cluster."""
    kept = {key: value for key, value in flower.environment().items() if key != "RAY_ADDRESS"}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", **extra}


def run_command(*arguments: str | Path, cwd: Path, timeout: float = 800) -> subprocess.CompletedProcess[str]:
    """Run flower-simulation as a user does."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of all processes below ``pid``, by process id."""
    return {child: line for child in family(pid) - {pid} if (line := command_line(child))}


def kill(pid: int, line: str) -> None:
    """Kill a process unless it is gone, or its id is another's by now; it may also end at this very moment."""
    if command_line(pid) == line:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def worker_pids() -> list[int]:
    """Return Ray's workers of this process."""
    return sorted(pid for pid, line in descendants(os.getpid()).items() if line.startswith("ray::Worker"))


class Command:
    """A command with a temporary folder of its own; ``kill`` ends its first process the hard way."""

    def __init__(self, arguments: list[str | Path], cwd: Path, scratch: Path) -> None:
        self.token = uuid4().hex
        self._log = (cwd / "commands.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            cwd=cwd,
            env=environment(**{MARK: self.token, "TMPDIR": str(scratch), "PYTHONPATH": os.getcwd()}),
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def family(self) -> dict[int, str]:
        """Return the command lines of the command and all that it started, by process id, without zombies."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"{MARK}={self.token}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = command_line(int(entry.name))
            except OSError:
                continue
        return {pid: line for pid, line in found.items() if line}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    def wait(self, timeout: float) -> int:
        """Return the exit code."""
        code = self.process.wait(timeout)
        self._log.close()
        return code

    def left_after(self, seconds: float) -> dict[int, str]:
        """Return what still runs once everything had ``seconds`` to end."""
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self.family(), seconds, "the end of all")
        return self.family()
