"""Processes of a laboratory that have imported everything when they begin: forks, in the place of commands.

Ten commands import torch for a minute on two busy cores; ten forks of one process that has done so take a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

from tests.chaos.namespace import enter
from tests.deploy.lab import ROOT, Process

# The clock first, before anything else has taken hold of the right one.
_IMPORTED = [
    "tests.chaos.wrong_clock", "tests.chaos.troubled", "perennial.client.link.connect",
    "perennial.client.link.private_key", "perennial.client.kept_predictors", "perennial.client.node",
    "perennial.server.link.bundle", "perennial.server.link.fleet_run", "perennial.server.link.key_folder",
    "perennial.server.link.listener", "perennial.server.predict.offering", "perennial.server.report.html",
    "perennial.server.run.prepare", "perennial.server.run.progress", "perennial.server.run.training",
]  # fmt: skip


class Forked(Process):
    """tests/chaos/troubled.py in a namespace, as a process that can be killed like any other."""

    def _launch(self, namespace: str, arguments: list[str]) -> int:
        _begin_server_of_forks()
        # In the end, those that still run are ended.
        self._child = multiprocessing.get_context("forkserver").Process(
            target=_become, args=(namespace, arguments, self._log), daemon=True
        )
        self._child.start()
        assert self._child.pid is not None
        return self._child.pid

    def running(self) -> bool:
        return self._child.is_alive()

    def end(self, number: int = signal.SIGKILL, seconds: float = 120) -> int:
        if self.running():
            os.kill(self.pid, number)
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        self._child.join(seconds)
        if self._child.exitcode is None:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.said()[-3000:]}")
        return self._child.exitcode


def _begin_server_of_forks() -> None:
    """Start the process that all others are forked from; nothing if it runs."""
    forkserver.set_forkserver_preload(_IMPORTED)
    # One thread of computing: what has others cannot be forked.
    with _environment(OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT), FLWR_TELEMETRY_ENABLED="0"):
        forkserver.ensure_running()


@contextlib.contextmanager
def _environment(**extra: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _become(namespace: str, arguments: list[str], log: Path) -> None:
    enter(f"/run/netns/{namespace}")
    os.chdir(log.parent)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from tests.chaos import troubled

    raise SystemExit(troubled.main(arguments))
