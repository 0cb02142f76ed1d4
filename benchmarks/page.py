"""Does the live page slow a run down? Rounds a second with the page open and without it, in turns.

    python -m benchmarks.page [--pairs 10] [--rounds 3000]

Each turn is a simulation as `flower-simulation run` makes it; in every second one its page is served and a viewer takes
all of its news. What counts is the ratio of the two, of all pairs together: it is printed with its 95 % interval.
"""

from __future__ import annotations

import argparse
import http.client
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from benchmarks.against import commit
from benchmarks.rounds import ROOT

# Student's t, 97.5 %, by degrees of freedom.
_T = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 14: 2.145, 19: 2.093}
EXPERIMENT = """
strategy: mc-psgd
data: digits
blocks: 2
cycles: {cycles}
rounds-per-block: 50
labels-per-block: 5
clients: 12
nodes: 2
batch-size: 8
local-iterations: {iterations}
"""


class Viewer(threading.Thread):
    """Takes a page's news until there are none any more."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address, self.events, self.bytes = address, 0, 0
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        connection.request("GET", "/events")
        with connection.getresponse() as answer:
            while line := answer.readline():
                self.events += line.startswith(b"event: parts")
                self.bytes += len(line)
        connection.close()


def main() -> None:
    options = _parse()
    print(f"{commit(ROOT)}, {os.cpu_count()} CPUs; {options.pairs} pairs of {options.rounds} rounds")
    print("rounds a second: without the page, with it, ratio; news that the viewer took", flush=True)
    ratios = []
    for pair in range(options.pairs):
        # Either way first by turns, so that a machine that gets slower wrongs neither.
        speeds, news = {}, ""
        for paged in (False, True) if pair % 2 else (True, False):
            speeds[paged], said = speed(options.rounds, options.local_iterations, paged=paged)
            news = said or news
        ratios.append(speeds[True] / speeds[False])
        print(f"{speeds[False]:8.1f} {speeds[True]:8.1f} {ratios[-1]:7.3f}   {news}", flush=True)
    mean, low, high = interval(ratios)
    verdict = "holds" if low <= 1.0 <= high else "does not hold"
    print(f"ratio {mean:.4f}, 95 % interval {low:.4f} to {high:.4f}: it {verdict} 1; load {os.getloadavg()[0]:.1f}")


def speed(rounds: int, iterations: int, *, paged: bool) -> tuple[float, str]:
    """Return rounds a second, and what a viewer got."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        experiment = EXPERIMENT.format(cycles=math.ceil(rounds / 100), iterations=iterations)
        (folder / "run.yaml").write_text(experiment)
        command = [str(Path(sys.executable).with_name("flower-simulation")), "run", "run.yaml"]
        process = subprocess.Popen(
            [*command, *(["--page", "0"] if paged else [])],
            cwd=folder,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        viewer = None
        if paged:
            said = next(line for line in process.stderr if line.startswith("page: "))
            viewer = Viewer(said.split("//")[1].strip().rstrip("/"))
        _, problems = process.communicate()
        if process.returncode:
            raise SystemExit(f"the run failed:\n{problems[-2000:]}")
        run = folder / "runs" / "run"
        # From the initial model, which is written before the first round, to the last round's line.
        seconds = (run / "metrics.jsonl").stat().st_mtime - (run / "initial.safetensors").stat().st_mtime
        done = len((run / "metrics.jsonl").read_bytes().splitlines())
    if viewer:
        viewer.join(10)
    return done / seconds, f"{viewer.events} times, {viewer.bytes / 1e6:.1f} MB" if viewer else ""


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    wide = _T.get(len(logs) - 1, 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - wide), math.exp(middle + wide)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--local-iterations", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
