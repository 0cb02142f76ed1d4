"""The full Perennial simulation, timed from round to round. Prints seconds of each round as JSON.

    python -m benchmarks.sides.perennial '{"strategy": "mm-psgd", "engine": "native", ...}' [--memory]

--memory: a second line with the peak resident megabytes of the driver and of the largest worker.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.processes import command_line, family
from perennial.common.command.config import RunConfig
from perennial.common.command.console import log_to_console
from perennial.common.cycle.schedule import Schedule
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.training import train
from perennial.server.strategies.record import FoldedRound
from perennial.simulation.cluster import connected
from perennial.simulation.passes import with_engine
from perennial.simulation.ray_grid import RayGrid

# Rounds that load data, compile and warm caches.
_WARM_UP = 5


class Stamps:
    """Notes when each round was over."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        now = time.perf_counter()
        if self._last is not None and record.slot.server_round > _WARM_UP:
            self.seconds.append(now - self._last)
        self._last = now


def rounds(settings: dict[str, object]) -> tuple[list[float], list[float]]:
    """Return the seconds of each round, all included but evaluation; and the driver's and a worker's peak megabytes."""
    config = RunConfig.from_mapping({"eval-every": 10**6, **settings})
    stamps = Stamps()
    with tempfile.TemporaryDirectory() as folder, connected(verbose=False) as cpus, closing(RayGrid(cpus)) as grid:
        run = with_engine(prepare([Run(config, RunFolder(Path(folder)))]), anew=True)
        print(f"engine: {run.config.engine}", file=sys.stderr, flush=True)
        nodes = config.nodes or min(cpus, run.config.clients)
        grid.begin(nodes, run.config.to_mapping())
        train(run, grid, nodes=nodes, eager=False, progress=stamps)
        workers = [pid for pid in family(os.getpid()) if command_line(pid).startswith("ray::")]
        memory = [peak(os.getpid()), max(map(peak, workers), default=math.nan)]
    return stamps.seconds, memory


def peak(pid: int) -> float:
    """Return the most megabytes that a process had resident so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


if __name__ == "__main__":
    log_to_console(verbose=False)
    seconds, memory = rounds(json.loads(sys.argv[1]))
    print(json.dumps(seconds))
    if "--memory" in sys.argv:
        print(json.dumps(memory))
