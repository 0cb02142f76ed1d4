"""What it costs to begin: seconds and resident memory of an import, each in a fresh interpreter.

    python -m benchmarks.imports [--tree DIR]... [--times 9]

Medians; trees take turns, so that a busy minute hits all of them. The line `pass` has what the interpreter itself takes
of memory. A tree without a package `perennial` has its parts at the top level.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
HELP = "from {prefix}client.cli import main; sys.argv = ['flower-client', '--help']; main()"
# What is printed goes to standard error; measured is what the statement took, also if it ends the process.
MEASURED = """
import os, sys, time
sys.stdout = sys.stderr
begun = time.perf_counter()
try:
    {statement}
except SystemExit:
    pass
seconds = time.perf_counter() - begun
pages = int(open("/proc/self/statm").read().split()[1])
print(seconds, pages * os.sysconf("SC_PAGE_SIZE") / 1e6, file=sys.__stdout__)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, action="append", metavar="DIR", help="a checkout (default: this one)")
    parser.add_argument("--times", type=int, default=9, metavar="N", help="interpreters for each line (default: 9)")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.tree or [ROOT]]
    with tempfile.TemporaryDirectory() as cache:
        found = _measured(trees, options.times, Path(cache))
    for tree in trees:
        print(f"\n{tree.name}\n{'':54} {'seconds':>8} {'MB':>7}")
        for name in statements(tree):
            seconds, megabytes = map(statistics.median, zip(*found[tree, name], strict=True))
            print(f"{name:54} {seconds:8.3f} {megabytes:7.1f}")


def statements(tree: Path) -> dict[str, str]:
    """Return what is measured of a tree, by the name of its line."""
    whole = (tree / "perennial").is_dir()
    prefix = "perennial." if whole else ""
    plain = [
        "pass",
        f"import {'perennial' if whole else 'common'}",
        f"from {prefix}server.strategies.mc_psgd import MCPSGD",
    ]
    return {**{line: line for line in plain}, "flower-client --help": HELP.format(prefix=prefix)}


def _measured(trees: list[Path], times: int, cache: Path) -> dict[tuple[Path, str], list[tuple[float, float]]]:
    """Return seconds and megabytes by tree and line; the first turn, which compiles everything, is not counted."""
    found = defaultdict(list)
    for turn in range(times + 1):
        for tree in trees:
            for name, statement in statements(tree).items():
                one = _one(tree, statement, cache)
                if turn:
                    found[tree, name].append(one)
    return found


def _one(tree: Path, statement: str, cache: Path) -> tuple[float, float]:
    # A cache of its own: no tree is written to, and none finds more of its modules compiled than the other.
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(cache)}
    line = [sys.executable, "-c", MEASURED.format(statement=statement)]
    done = subprocess.run(line, cwd=cache, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{tree}: {statement}\n{done.stderr}")
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


if __name__ == "__main__":
    main()
