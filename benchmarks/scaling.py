"""Seconds a round against clients per round, clients in total and model size; and what a round costs without work.

    python -m benchmarks.scaling [--rounds 30]

Each line is a simulation of its own on 2 nodes; medians. Memory is the peak of the driver and of the largest worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sides.setting import data_file

ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    paper = {"data": str(data_file()), "model": "cnn", "clients": 100, "labels-per-block": 8, "client-skew": 0.0}
    idle = {**paper, "clients": 2, "local-iterations": 1, "batch-size": 1, "selection-examples": 1}
    _head("a round without work: 2 nodes, 1 step of batch 1 each, the paper's CNN")
    for strategy in ("mm-psgd", "mc-psgd"):
        _line(strategy, {**idle, "strategy": strategy}, rounds)
    _head("clients a round, of 1,000: mm-psgd, the paper's CNN")
    for share in (0.01, 0.05, 0.1, 0.2):
        _line(f"{share * 1000:.0f}", {**paper, "strategy": "mm-psgd", "clients": 1000, "participation": share}, rounds)
    _head("clients in all, 100 a round: mm-psgd, linear on 16 features")
    with tempfile.TemporaryDirectory() as folder:
        wide = {"data": _many(Path(folder)), "model": "linear", "labels-per-block": 10, "strategy": "mm-psgd"}
        for clients in (100, 1_000, 10_000, 100_000):
            _line(f"{clients:,}", {**wide, "clients": clients, "participation": 100 / clients}, rounds)
    _head("model size, 20 clients: mm-psgd, one hidden layer on 3,072 features")
    for width in (16, 64, 256, 1024):
        model = f"benchmarks.sides.wide:mlp_{width}"
        _line(f"{3072 * width / 1e6:.2f} M", {**paper, "strategy": "mm-psgd", "clients": 20, "model": model}, rounds)


def _many(folder: Path) -> str:
    """Write a data set with examples enough for 100,000 clients in each of two blocks."""
    rng, n = np.random.default_rng(0), 400_000
    x = rng.normal(size=(n, 16)).astype(np.float32)
    y = rng.integers(0, 10, n)
    np.savez(folder / "many.npz", x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])
    return str(folder / "many.npz")


def _head(text: str) -> None:
    print(f"\n{text}\n{'':>12} {'ms/round':>9} {'driver MB':>10} {'worker MB':>10}", flush=True)


def _line(name: str, settings: dict[str, Any], rounds: int) -> None:
    sizes = {"blocks": 2, "cycles": 1, "rounds-per-block": rounds // 2 + 3, "nodes": 2}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sides.perennial", json.dumps({**settings, **sizes}), "--memory"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    seconds, memory = (json.loads(line) for line in done.stdout.strip().splitlines()[-2:])
    print(f"{name:>12} {statistics.median(seconds) * 1e3:9.2f} {memory[0]:10.0f} {memory[1]:10.0f}", flush=True)


if __name__ == "__main__":
    main()
