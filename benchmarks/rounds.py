"""Seconds a round at the paper's setting, side by side in one run: stock Flower, pfl-research, and all our engines.

    python -m benchmarks.rounds [--rounds 40] [--stock-rounds 5] [--networks token_net,gru_net] [--only-networks]

100 clients, 10 steps of batch 2, the paper's CNN, data of CIFAR-10's shape; then networks that the native engine does
not take, each beside stock Flower with the same network. Medians, because the machine may be shared.
pfl-research is measured where PFL_PYTHON names a Python that has the package `pfl`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.engines import BATCH, JUDGED, flops, sgemm
from benchmarks.processes import commit
from benchmarks.sides.setting import CLIENTS, LOCAL_ITERATIONS, data_file
from benchmarks.sides.wide import OTHERS
from perennial.common.task import models

ROOT = Path(__file__).parent.parent


def main() -> None:
    arguments = _parse()
    print(f"commit {commit(ROOT)}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
    if not arguments.only_networks:
        _papers(arguments)
    _others(arguments)


def _papers(arguments: argparse.Namespace) -> None:
    """The paper's network, on every engine."""
    peak = _peak()
    forward, backward = flops(models.build("cnn", (3, 32, 32), 10))
    step = BATCH * (forward + backward) * CLIENTS * LOCAL_ITERATIONS
    mixed, both = step, 2 * step + 2 * JUDGED * forward * CLIENTS
    stock, _ = _run(sys.executable, "benchmarks.sides.stock_flower", str(arguments.stock_rounds))
    rows = [("stock Flower, FedAvg", stock, mixed)]
    if pfl := os.environ.get("PFL_PYTHON"):
        seconds, _ = _run(pfl, "benchmarks.sides.pfl_research", str(arguments.stock_rounds))
        rows.append(("pfl-research, FedAvg", seconds, mixed))
    for engine in ("loop", "stacked", "native"):
        rounds = arguments.rounds if engine == "native" else arguments.stock_rounds
        for strategy, work in (("mm-psgd", mixed), ("mc-psgd", both)):
            rows.append((f"{engine}, {strategy}", _ours(engine, strategy, rounds)[0], work))
    print(f"machine: {os.cpu_count()} cores, sgemm {peak:.0f} GFLOP/s")
    print(f"{'':28} {'s/round':>9} {'x stock':>8} {'GFLOP/s':>9} {'of peak':>8}")
    for name, seconds, work in rows:
        rate = work / seconds / 1e9
        print(f"{name:28} {seconds:9.4f} {stock / seconds:8.1f} {rate:9.1f} {rate / peak:8.1%}", flush=True)


def _others(arguments: argparse.Namespace) -> None:
    """Each other network: mm-psgd on every engine that takes it, and on the one that auto takes."""
    print(f"{'':28} {'s/round':>9} {'x stock':>8} {'x loop':>8}")
    for name in arguments.networks.split(","):
        takes_tokens = OTHERS[name][1]
        data = "benchmarks.sides.texts:Texts" if takes_tokens else str(data_file())
        stock, _ = _run(sys.executable, "benchmarks.sides.stock_flower", str(arguments.stock_rounds), name)
        print(f"{name + ', stock Flower':28} {stock:9.4f} {1:8.1f}", flush=True)
        loop = float("nan")
        for engine in arguments.engines.split(","):
            model = f"benchmarks.sides.wide:{name}"
            seconds, chosen = _ours(engine, "mm-psgd", arguments.stock_rounds, model, data)
            loop = seconds if engine == "loop" else loop
            label = f"{name}, {engine}" + (f": {chosen}" if engine == "auto" else "")
            print(f"{label:28} {seconds:9.4f} {stock / seconds:8.1f} {loop / seconds:8.1f}", flush=True)


def _ours(engine: str, strategy: str, rounds: int, model: str = "cnn", data: str = "") -> tuple[float, str]:
    return _run(
        sys.executable, "benchmarks.sides.perennial", json.dumps(setting(engine, strategy, rounds, model, data))
    )


def setting(engine: str, strategy: str, rounds: int, model: str = "cnn", data: str = "") -> dict[str, object]:
    """Return the keys of a run at the paper's setting."""
    return {
        "strategy": strategy,
        "engine": engine,
        "data": data or str(data_file()),
        "model": model,
        "clients": CLIENTS,
        "labels-per-block": 8,
        "client-skew": 0.0,
        "local-iterations": LOCAL_ITERATIONS,
        "batch-size": BATCH,
        "selection-examples": JUDGED,
        "cycles": 1,
        "blocks": 2,
        "rounds-per-block": max(5, (rounds + 6) // 2),
    }


def _run(python: str, module: str, *arguments: str) -> tuple[float, str]:
    """Return the median seconds a round that a side prints as its last line, and the engine that it names."""
    # Ray would start stock Flower's workers at nice 15, and compare it with what else runs here.
    environment = {
        **os.environ,
        "RAY_worker_niceness": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [python, "-m", module, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr[-2000:]}")
    seconds: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
    chosen = [line.removeprefix("engine: ") for line in done.stderr.splitlines() if line.startswith("engine: ")]
    what = " ".join([module.rpartition(".")[2], *(argument[:60] for argument in arguments), *chosen])
    print(f"  {what}: {len(seconds)} rounds", file=sys.stderr, flush=True)
    return statistics.median(seconds), " ".join(chosen)


def _peak() -> float:
    torch.set_num_threads(os.cpu_count() or 1)
    return sgemm(2048)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds of the native engine")
    parser.add_argument("--stock-rounds", type=int, default=5, help="rounds of everything slower")
    parser.add_argument("--networks", default=",".join(OTHERS), help=f"of the others: {', '.join(OTHERS)}")
    parser.add_argument("--engines", default="loop,stacked,compiled,auto", help="that train those others")
    parser.add_argument("--only-networks", action="store_true", help="leave out the paper's network")
    return parser.parse_args()


if __name__ == "__main__":
    main()
