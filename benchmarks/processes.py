"""Processes as the system sees them: who descends from whom, and waiting for what they do; and the commit of a tree."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from perennial.common.command.flower import end


def commit(tree: Path) -> str:
    """Return the commit that a tree shows; "-dirty" behind it if the tree has changes."""
    line = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(line, cwd=tree, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def family(root: int) -> set[int]:
    """Return ``root`` and all processes below it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended just now
                continue
    found, size = {root}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def command_line(pid: int) -> str:
    """Return a process's command line; empty where it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return once ``condition`` holds; fail with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in ``cwd``, or beside its log, which has all that it says.

    In the end it is asked to end, then made to.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=cwd or log.parent, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        end(process, 20)
