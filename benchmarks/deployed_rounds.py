"""Seconds a deployed round takes, stock Flower and ours side by side: two nodes, two models of 250 kB, on this machine.

    python benchmarks/deployed_rounds.py
    python -m benchmarks.against ../before --lines deployed      ours alone, beside another commit's, in turns

Both run the same app on the same data through the same commands; local training is one step, so that what is timed is
the runtime. Stock is Flower as it comes: flower-superlink, flower-supernode, `flwr run`, and Flower's own grid. Also
prints what a client costs while it waits: share of a CPU, and memory.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.processes import running, wait_until  # noqa: E402
from perennial.common.command.config import RunConfig  # noqa: E402
from perennial.common.command.flower import command, environment, free_port  # noqa: E402
from perennial.common.data import shards  # noqa: E402
from perennial.common.data.datasets import Described, Shard  # noqa: E402
from perennial.common.data.examples import Signature  # noqa: E402
from perennial.server.link import bundle, stock  # noqa: E402

NODES, BLOCKS = 2, 2
STRATEGY = {"strategy": "mc-psgd", "model": "cnn", "local-iterations": 1, "batch-size": 2, "engine": "loop"}
IDLE_SECONDS = 30.0


class RandomShards(Described):
    """A few random images a shard: what is learned from them is of no interest."""

    signature, blocks, clients = Signature.labelled((3, 32, 32), 10), BLOCKS, tuple(range(NODES))

    def shard(self, client: int, block: int) -> Shard:
        rng = np.random.default_rng([client, block])
        x, y = rng.normal(size=(8, *self.shape)).astype(np.float32), rng.integers(0, 10, 8)
        return Shard((x,), y, np.arange(8))

    def test(self, block: int) -> Shard | None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--stock-rounds", type=int, default=12, help="a multiple of 4 (default: 12)")
    parser.add_argument("--rounds", type=int, default=60, help="a multiple of 4 (default: 60)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for client in range(NODES):
            shards.write(folder / f"node-{client}", RandomShards(), [client], with_test=False)
        shards.write(folder / "all", RandomShards(), range(NODES), with_test=False)
        theirs = stock_rounds(folder / "stock", options.stock_rounds)
        ours = quick_rounds(folder / "quick", options.rounds)
        cpu, resident, private = idle_client(folder / "idle")
    load = os.getloadavg()[0]
    print(f"{NODES} nodes, two models of 248 kB, MC-PSGD, {os.cpu_count()} CPUs, load {load:.1f}\n")
    print("| runtime | rounds | median s | 90 % s |\n|---|---|---|---|")
    for title, seconds in (("stock flwr", theirs), ("perennial", ours)):
        ordered = sorted(seconds)
        print(
            f"| {title} | {len(seconds)} | {statistics.median(seconds):.2f} | {ordered[int(0.9 * len(ordered))]:.2f} |"
        )
    print(f"\nstock / perennial: {statistics.median(theirs) / statistics.median(ours):.1f}")
    print(
        f"a client that waits: {100 * cpu:.2f} % of a CPU, {resident:.0f} MB resident, {private:.0f} MB of it its own"
    )


def settings(folder: Path, rounds: int) -> dict[str, object]:
    return {
        **STRATEGY,
        "data": str(folder.parent / "all"),
        "output": str(folder / "run"),
        "nodes": NODES,
        "cycles": 2,
        "rounds-per-block": rounds // 4,
        # Without end: on a busy machine stock's nodes miss their first deadlines.
        "node-timeout": 0.0,
        "round-attempts": 0,
    }


def stock_rounds(folder: Path, rounds: int) -> list[float]:
    """Return the seconds of each round but the first, which also waits for the nodes' first start."""
    folder.mkdir()
    port = free_port()
    variables = environment(folder / "flwr")
    with ExitStack() as stack:
        link = [command("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
        stack.enter_context(running(link, folder / "superlink.log", variables))
        wait_until(lambda: answers(port), 120, "an answer of the SuperLink")
        for client in range(NODES):
            node = [command("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}", "--node-config"]
            node += [f'data="{folder.parent / f"node-{client}"}"', "--port", str(free_port())]
            stack.enter_context(running(node, folder / f"node-{client}.log", variables))
        app = folder / "app"
        bundle.stage(app, RunConfig.from_mapping(settings(folder, rounds)))
        # Flower's own grid, with its own polls.
        server_app = app / "perennial" / "server" / "app.py"
        source = server_app.read_text()
        assert "EagerGrid(grid)" in source
        server_app.write_text(source.replace("EagerGrid(grid)", "grid"))
        flower = stock.Flower(folder / "flwr", f"127.0.0.1:{port}", None)
        done = flower._flwr("run", str(app), "perennial", "--format", "json")
        assert '"success": true' in done.stdout, done.stdout + done.stderr
        return wait_for_rounds(folder, rounds, 120 + 90 * rounds)


def quick_rounds(folder: Path, rounds: int) -> list[float]:
    folder.mkdir()
    with fleet(folder, settings(folder, rounds)):
        return wait_for_rounds(folder, rounds, 240 + 10 * rounds)


def idle_client(folder: Path) -> tuple[float, float, float]:
    """Return CPU seconds a second, and resident and private memory in MB, of a client without orders."""
    folder.mkdir()
    with fleet(folder, {**settings(folder, 4), "nodes": 99}) as clients:
        log = folder / "node-0.log"
        wait_until(lambda: "connected as node" in log.read_text(), 240, "a connected client")
        # The first seconds still import and settle.
        time.sleep(5)
        before = cpu_seconds(clients[0].pid)
        time.sleep(IDLE_SECONDS)
        cpu = (cpu_seconds(clients[0].pid) - before) / IDLE_SECONDS
        status = dict(line.split(":", 1) for line in Path(f"/proc/{clients[0].pid}/status").read_text().splitlines())
        return cpu, *(int(status[key].split()[0]) / 1024 for key in ("VmRSS", "RssAnon"))  # type: ignore[return-value]


@contextmanager
def fleet(folder: Path, keys: dict[str, object]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A flower-server and its flower-clients; yields the clients."""
    port = free_port()
    variables = {**environment(folder / "flwr"), "PYTHONPATH": str(ROOT)}
    flags = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
    server = ["-m", "perennial.server.cli", "--insecure", "--port", str(port), "--state-dir", str(folder), *flags]
    with ExitStack() as stack:
        stack.enter_context(running([sys.executable, *server], folder / "server.log", variables))
        clients = []
        for client in range(NODES):
            arguments = ["--insecure", "--server", f"127.0.0.1:{port}", "--data", str(folder.parent / f"node-{client}")]
            node = [sys.executable, "-m", "perennial.client.cli", *arguments]
            clients.append(stack.enter_context(running(node, folder / f"node-{client}.log", variables)))
        yield clients


def wait_for_rounds(folder: Path, rounds: int, seconds: float) -> list[float]:
    metrics = folder / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= rounds, seconds, f"{rounds} rounds")
    return [json.loads(line)["seconds"] for line in metrics.read_text().splitlines()][1:]


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
