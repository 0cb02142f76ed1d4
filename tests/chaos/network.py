"""A fleet on a bad network, from a seed: every round counts once, and the predictors are those of what was accepted.

    python -m tests.chaos.network --seeds 3 --rounds 700 --faults 70

As root, in network namespaces. The same seed brings the same faults.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.accepted import replayed
from tests.chaos.fault_plan import DEVICES, plan
from tests.chaos.fleet_lab import ETA, GAMMA, STEPS, FleetLab
from tests.chaos.trouble import ROUND_SECONDS, Tally, Trouble
from tests.conftest import read_predictors
from tests.deploy.lab import rows

CLASSES, TOLERANCE = 3, 1e-5


def endure(folder: Path, *, seed: int, rounds: int, faults: int, number: int = 3) -> Tally:
    """Run a fleet under the faults of a seed; raises AssertionError if anything is lost or counted twice."""
    cycles = 2
    per_block = rounds // (2 * cycles)
    lab = FleetLab(folder, number, rounds_per_block=per_block, cycles=cycles, seed=seed)
    tally = Tally(rounds=2 * cycles * per_block)
    try:
        trouble = Trouble(lab, tally)
        for fault in plan(seed, faults, tally.rounds):
            trouble.strike(fault)
        trouble.finish()
        tally.struck = trouble.struck()
        assert lab.server.wait(ROUND_SECONDS) == 0, lab.server.said()[-3000:]
        tally.difference = check(lab.output, lab.data, tally.rounds)
        assert "connected as node" not in lab.stranger.said(), "a key that is not registered was let in"
    finally:
        lab.close()
    return tally


def check(output: Path, data: Any, count: int) -> float:
    """Hold what a run wrote against the replay; return the largest difference of a predictor."""
    found = rows(output)
    assert [row["server-round"] for row in found] == list(range(1, count + 1)), "a round is missing or there twice"
    for row in found:
        accepted = row["accepted"]
        assert accepted == sorted(set(accepted)), f"a client counts twice: {row}"
        assert accepted, row
        assert set(accepted) <= set(range(DEVICES)), f"a client that is not registered: {row}"
    expected = replayed(found, data, CLASSES, gamma=GAMMA, eta=ETA, steps=STEPS)
    differences = []
    for arrays, model in zip(read_predictors(output), expected, strict=True):
        flat = np.vstack([arrays["fc.weight"].T, arrays["fc.bias"][None]]).astype(np.float64)
        differences.append(float(np.abs(flat - model).max()))
    assert max(differences) < TOLERANCE, f"predictors differ from the replay by {max(differences):g}"
    return max(differences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from the first one on (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--rounds", type=int, default=700, help="of each seed, a multiple of 4 (default: 700)")
    parser.add_argument("--faults", type=int, default=70, help="of each seed (default: 70)")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"commit {commit}", flush=True)
    start, every = time.monotonic(), Tally()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        with tempfile.TemporaryDirectory(prefix="network-", ignore_cleanup_errors=True) as folder:
            one = endure(Path(folder), seed=seed, rounds=options.rounds, faults=options.faults)
        print(f"seed {seed}: {one.faults.total()} faults in {one.rounds} rounds, "
              f"largest difference from the replay {one.difference:.1e}", flush=True)  # fmt: skip
        every.rounds += one.rounds
        every.difference = max(every.difference, one.difference)
        every.faults += one.faults
        every.struck += one.struck
        for who, seconds in one.back.items():
            every.back[who] += seconds
    print(", ".join(f"{kind} {count}" for kind, count in sorted(every.faults.items())))
    print("connections and packets that suffered: "
          + ", ".join(f"{kind} {count}" for kind, count in sorted(every.struck.items())))  # fmt: skip
    for who, seconds in every.back.items():
        if seconds:
            print(f"from a {who} that is up to a round with all devices: median {statistics.median(seconds):.1f} s, "
                  f"at most {max(seconds):.1f} s, {len(seconds)} times")  # fmt: skip
    print(f"{every.faults.total()} faults in {every.rounds} rounds: predictors within {every.difference:.1e} of the "
          f"replay ({time.monotonic() - start:.0f} s in all)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
