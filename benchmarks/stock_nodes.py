"""Seconds that a round of MC-PSGD takes with unchanged flower-supernodes, and with flower-clients on the same app.

    python -m benchmarks.stock_nodes
    python -m benchmarks.stock_nodes --mixed 50         # one flower-supernode and 50 flower-clients in one run

The app is a quickstart's on NumPy, of four numbers, so that what is timed is the runtime. All is on this machine, with
TLS and keys. The first round is left out: in it nodes come online and stock ones fetch the app. What the stock nodes
have not done within ``--stock-seconds`` is left out too; one round after the first is the least that counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.app_fleet import AppFleet  # noqa: E402
from benchmarks.processes import commit, wait_until  # noqa: E402
from perennial.common.command.flower import environment  # noqa: E402
from tests.apps import numpy_app  # noqa: E402

_SECONDS_PER_ROUND = 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=20, help="default: 20")
    parser.add_argument("--stock-rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--stock-seconds", type=float, default=600.0, help="at most; default: 600")
    parser.add_argument("--rounds", type=int, default=40, help="default: 40")
    parser.add_argument("--mixed", type=int, default=0, metavar="CLIENTS",
                        help="measure one flower-supernode with so many flower-clients instead")  # fmt: skip
    options = parser.parse_args()
    if options.mixed:
        found = seconds("mixed", options.mixed + 1, options.stock_rounds, options.stock_seconds)
        print(
            f"commit {commit(ROOT)}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}: one flower-supernode and "
            f"{options.mixed} flower-clients, all of them in each of {len(found) + 1} rounds: median "
            f"{statistics.median(found):.2f} s, slowest {max(found):.2f} s"
        )
        return
    stock = seconds("stock", options.nodes, options.stock_rounds, options.stock_seconds)
    quick = seconds("quick", options.nodes, options.rounds, _SECONDS_PER_ROUND)
    print(f"commit {commit(ROOT)}, {options.nodes} nodes, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    print("| nodes | rounds | median s | slowest s |\n|---|---|---|---|")
    for name, found in (("flower-supernode", stock), ("flower-client --app", quick)):
        print(f"| {name} | {len(found)} | {statistics.median(found):.2f} | {max(found):.2f} |")
    print(f"\nflower-supernode / flower-client: {statistics.median(stock) / statistics.median(quick):.0f}")


def seconds(kind: str, nodes: int, rounds: int, most: float) -> list[float]:
    """Return the seconds of each round but the first, of those that were done within ``most`` seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {**environment(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        fleet = AppFleet(numpy_app.write(folder / "app"), folder, nodes, Path(sys.executable).parent, variables)
        fleet.prepare()
        keys = numpy_app.keys(nodes=nodes, cycles=1, **{"blocks": 1, "rounds-per-block": rounds, "node-timeout": most})
        flags = [] if kind == "quick" else ["--stock-nodes"]
        with (
            fleet.served(keys, *flags) as (server, port),
            fleet.connected(kind, port, numpy_app.APP),
            suppress(TimeoutError),
        ):
            wait_until(lambda: server.poll() is not None, most, f"{rounds} rounds")
        found = [float(row["seconds"]) for row in fleet.rows()]
        assert len(found) > 1, (folder / "server.log").read_text()[-3000:]
        assert all(row["clients-answered"] == nodes for row in fleet.rows()), "some nodes did not answer"
        return found[1:]


if __name__ == "__main__":
    main()
