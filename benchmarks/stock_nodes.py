"""Seconds that a round of MC-PSGD takes with unchanged flower-supernodes, and with flower-clients on the same app.

    python -m benchmarks.stock_nodes
    python -m benchmarks.stock_nodes --mixed 50         # one flower-supernode and 50 flower-clients in one run

The app is a quickstart's on NumPy, of four numbers, so that what is timed is the runtime. All is on this machine, with
TLS and keys. The first round is left out: in it nodes come online and stock ones fetch the app. What the stock nodes
have not done within ``--stock-seconds`` is left out too; one round after the first is the least that counts.

A stock node starts a process for each message, and Flower takes a message away from a process that is not ready within
half a minute, and starts another: where many nodes have few CPUs, there are ever more processes, and no answer. So that
a round has few of them, ``--participation`` lets a part of the nodes take part, and ``--one-message`` sends both chains
in one message; for both kinds of nodes.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping
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
    parser.add_argument("--participation", type=float, default=1.0, help="the part of the nodes that a round has")
    parser.add_argument("--one-message", action="store_true", help="both chains travel in one message")
    options = parser.parse_args()
    # What is ended from outside ends its nodes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    together = {"one-message": options.one_message, "participation": options.participation}
    how = f"{options.participation:.0%} of them in a round, {1 if options.one_message else 2} messages to each"
    if options.mixed:
        found = seconds("mixed", options.mixed + 1, options.stock_rounds, options.stock_seconds, together)
        print(
            f"commit {commit(ROOT)}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}: one flower-supernode and "
            f"{options.mixed} flower-clients, all of them in each of {len(found) + 1} rounds: median "
            f"{statistics.median(found):.2f} s, slowest {max(found):.2f} s"
        )
        return
    stock = seconds("stock", options.nodes, options.stock_rounds, options.stock_seconds, together)
    quick = seconds("quick", options.nodes, options.rounds, _SECONDS_PER_ROUND, together)
    print(
        f"commit {commit(ROOT)}, {options.nodes} nodes, {how}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n"
    )
    print("| nodes | rounds | median s | slowest s |\n|---|---|---|---|")
    for name, found in (("flower-supernode", stock), ("flower-client --app", quick)):
        print(f"| {name} | {len(found)} | {statistics.median(found):.2f} | {max(found):.2f} |")
    print(f"\nflower-supernode / flower-client: {statistics.median(stock) / statistics.median(quick):.0f}")


def seconds(kind: str, nodes: int, rounds: int, most: float, more: Mapping[str, object]) -> list[float]:
    """Return the seconds of each round but the first, of those that were done within ``most`` seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {**environment(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        fleet = AppFleet(numpy_app.write(folder / "app"), folder, nodes, Path(sys.executable).parent, variables)
        fleet.prepare()
        schedule = {"blocks": 1, "rounds-per-block": rounds, "cycles": 1}
        keys = numpy_app.keys(**schedule, nodes=nodes, **{"node-timeout": most, **more})
        flags = [] if kind == "quick" else ["--stock-nodes"]
        with (
            fleet.served(keys, *flags) as (server, port),
            fleet.connected(kind, port, numpy_app.APP),
            suppress(TimeoutError),
        ):
            wait_until(lambda: server.poll() is not None, most, f"{rounds} rounds")
        found = [float(row["seconds"]) for row in fleet.rows()]
        assert len(found) > 1, (folder / "server.log").read_text()[-3000:]
        assert all(row["clients-answered"] == row["clients-asked"] > 0 for row in fleet.rows()), "some did not answer"
        return found[1:]


if __name__ == "__main__":
    main()
