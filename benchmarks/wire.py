"""Accuracy against bytes: the same training with models in float32 and in float16, down and up.

    python -m benchmarks.wire --data digits
    python -m benchmarks.wire --data cifar10            # a few minutes on two cores

Prints a line for each pair of the keys wire-down and wire-up: megabytes of a round on as many nodes as there are CPUs,
and the mean accuracy over blocks of MC-PSGD and of FedAvg, at the end and over the last cycle.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fleet_lab import MEGA, commit, table_row
from perennial.common.command.config import WIRE
from perennial.server.report.quantities import final, last_cycle
from perennial.server.report.reading import RunResult, read
from perennial.simulation.cli import main as simulate

STRATEGIES = ("mc-psgd", "fedavg")
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "blocks": 5, "labels-per-block": 2, "clients": 20, "client-skew": 0.5, "cycles": 5, "rounds-per-block": 10,
        "local-iterations": 10, "batch-size": 8, "lr-mixed": 0.1, "lr-separate": 0.1,
    },
    "cifar10": {
        "model": "cnn", "blocks": 5, "labels-per-block": 2, "block-skew": 0.4, "clients": 20, "client-skew": 0.0,
        "cycles": 4, "rounds-per-block": 20, "local-iterations": 10, "batch-size": 8, "lr-mixed": 0.02,
        "lr-separate": 0.02, "selection-examples": 10,
    },
}  # fmt: skip
HEAD = (
    "| data | down | up | MB down a round | MB up a round | MC-PSGD, end | last cycle | FedAvg, end | last cycle |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=tuple(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"commit {commit()}, {os.cpu_count()} CPUs\n\n{HEAD}", flush=True)
    for data, down, up in product(options.data, WIRE, WIRE):
        with tempfile.TemporaryDirectory() as folder:
            keys = {**SETTINGS[data], "data": data, "seed": options.seed, "wire-down": down, "wire-up": up}
            print(line(trained(Path(folder), keys), data, down, up), flush=True)
    return 0


def trained(folder: Path, keys: dict[str, Any]) -> list[RunResult]:
    """Run an experiment, and return its runs in the order of ``STRATEGIES``."""
    described, output = folder / "experiment.yaml", folder / "runs"
    described.write_text(yaml.safe_dump({**keys, "strategy": list(STRATEGIES)}))
    with contextlib.redirect_stdout(sys.stderr):
        code = simulate(["run", str(described), "--set", f"output={output}"])
    if code:
        sys.exit(code)
    return [read(output / strategy) for strategy in STRATEGIES]


def line(runs: list[RunResult], data: str, down: str, up: str) -> str:
    rounds = runs[0].rounds
    sent = (f"{float(one.sum()) / len(rounds) / MEGA:.3f}" for one in (rounds.bytes_down, rounds.bytes_up))
    scores = (
        f"{100 * value:.1f} %" for run in runs for value in (final(run.evaluated), last_cycle(run.evaluated).mean)
    )
    return table_row(data, down, up, *sent, *scores)


if __name__ == "__main__":
    sys.exit(main())
