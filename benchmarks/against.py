"""This tree's rounds beside another tree's, in turns: does a change make any line slower?

    git worktree add --detach ../before COMMIT
    python -m benchmarks.against ../before [--turns 5] [--lines native,deployed]

Each turn runs a line in the one tree and then in the other, so that other work on the machine meets both. What counts
is the ratio of the medians over the turns; the ratios of the single turns tell how far it can be trusted. Both trees
run in this environment's Python.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.processes import commit
from benchmarks.rounds import ROOT, setting
from benchmarks.sides.setting import data_file

_DEPLOYED = """
import json, pathlib, sys, tempfile
from benchmarks import deployed_rounds as side
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    for client in range(side.NODES):
        side.shards.write(folder / f"node-{client}", side.RandomShards(), [client], with_test=False)
    side.shards.write(folder / "all", side.RandomShards(), range(side.NODES), with_test=False)
    print(json.dumps(side.quick_rounds(folder / "quick", int(sys.argv[1]))))
"""


def lines(rounds: int, slow: int) -> dict[str, list[str]]:
    """Return what to run for each line, after the name of the Python."""
    found = {}
    for engine in ("native", "stacked", "loop"):
        for strategy in ("mm-psgd", "mc-psgd"):
            keys = setting(engine, strategy, rounds if engine == "native" else slow)
            found[f"{engine}, {strategy}"] = ["-m", "benchmarks.sides.perennial", json.dumps(keys)]
    found["deployed, mc-psgd, 2 nodes"] = ["-c", _DEPLOYED, str(rounds)]
    return found


def main() -> None:
    options = _parse()
    ratios, there = [], Path(options.tree).resolve()
    data_file()
    print(f"{commit(ROOT)} beside {commit(there)}, {os.cpu_count()} CPUs; {options.turns} turns")
    print(f"{'median seconds a round':28} {'before':>9} {'now':>9} {'ratio':>7}   single turns", flush=True)
    for name, arguments in lines(options.rounds, options.slow_rounds).items():
        if not any(word in name for word in options.lines.split(",")):
            continue
        pairs = [(median(there, arguments), median(ROOT, arguments)) for _ in range(options.turns)]
        before, now = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios.append(now / before)
        turns = " ".join(f"{ours / theirs:.2f}" for theirs, ours in pairs)
        load = f"load {os.getloadavg()[0]:.1f}"
        print(f"{name:28} {before:9.4f} {now:9.4f} {now / before:7.3f}   {turns}   {load}", flush=True)
    print(f"the slowest line takes {max(ratios):.3f} times as long as before")


def median(tree: Path, arguments: list[str]) -> float:
    """Return the median seconds of a round that the side in this tree prints as its last line."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "RAY_worker_niceness": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {arguments[:2]} failed:\n{done.stderr[-2000:]}")
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    return statistics.median(seconds)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", help="the checkout to compare with")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the native engine and of the deployed line")
    parser.add_argument("--slow-rounds", type=int, default=5, help="rounds of the other engines")
    parser.add_argument("--lines", default="", help="only the lines with one of these words, split by commas")
    options = parser.parse_args()
    if not (Path(options.tree) / "benchmarks").is_dir():
        parser.error(f"{options.tree} is no checkout of this project: make one by `git worktree add`")
    return options


if __name__ == "__main__":
    main()
