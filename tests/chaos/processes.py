"""Processes of a command under test: all of them are found by a mark in their environment, wherever they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from tests.conftest import command_line, environment

MARK = "PERENNIAL_CHAOS"


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
        deadline = time.monotonic() + seconds
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left
