"""Fuzz the readers of everything that comes from outside, by seeded mutation of sound inputs.

    python -m tests.fuzz --examples 100000

Ends with 1 at the first input that a reader neither takes nor refuses in its own words, and prints how to see it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from tests.fuzz.targets import TARGETS

# YAML is slow to read; experiment files get fewer inputs, not more minutes.
SHARES = {"protocol": 3, "config": 2, "experiment": 1, "shards": 2, "checkpoint": 2}
# A reader that takes longer than this over a few hundred bytes can be made to hang.
MOST_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000, help="in all (default: 100000)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="N", help="input N alone")
    options = parser.parse_args()
    # numpy warns of old and odd headers; that is no crash.
    warnings.simplefilter("ignore")
    names = options.target or list(TARGETS)
    shares = sum(SHARES[name] for name in names)
    total = 0
    for name in names:
        numbers = range(-(-options.examples * SHARES[name] // shares)) if options.only is None else [options.only]
        if not fuzz(name, options.seed, numbers):
            return 1
        total += len(numbers)
    print(f"{total} inputs, no finding")
    return 0


def fuzz(name: str, seed: int, numbers: range | list[int]) -> bool:
    """Run one target; False at the first finding."""
    start, taken, slowest = time.monotonic(), 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        target = TARGETS[name](Path(folder))
        for number in numbers:
            before = time.monotonic()
            try:
                taken += target.once(random.Random(f"{seed}-{name}-{number}"))
            except Exception:
                traceback.print_exc()
                print(f"finding: python -m tests.fuzz --target {name} --seed {seed} --only {number}")
                return False
            slowest = max(slowest, time.monotonic() - before)
            if slowest > MOST_SECONDS:
                print(f"slow: python -m tests.fuzz --target {name} --seed {seed} --only {number}")
                return False
    print(f"{name:10} {len(numbers):7} inputs, {taken:6} taken, {len(numbers) - taken:6} refused; "
          f"slowest {1000 * slowest:.0f} ms, {time.monotonic() - start:.0f} s", flush=True)  # fmt: skip
    return True


if __name__ == "__main__":
    sys.exit(main())
