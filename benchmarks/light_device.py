"""What a device needs: seconds until flower-client is connected, and memory; and one gateway with a thousand clients.

    python -m benchmarks.light_device
    python -m benchmarks.light_device --starts 9 --clients 1000 --model linear cnn

The light device runs a quickstart's app on NumPy, without torch. Memory is read while it answers rounds; pages of
libraries that it shares with others are counted whole. The gateway runs the project's own app on a folder of shards.
Server and device share the machine, with TLS and keys.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.app_fleet import AppFleet  # noqa: E402
from benchmarks.fleet_lab import MEGA, MODELS, commit, table_row  # noqa: E402
from benchmarks.processes import running, wait_until  # noqa: E402
from perennial.common.command.flower import environment  # noqa: E402
from tests.apps import numpy_app  # noqa: E402

_MINUTES = 600
_BLOCKS, _EXAMPLES = 2, 20
# Rounds that a device answers before its memory is read.
_ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--starts", type=int, default=5, help="of the light device (default: 5)")
    parser.add_argument("--clients", type=int, default=1000, help="of the gateway (default: 1000)")
    parser.add_argument("--model", nargs="*", choices=tuple(MODELS), default=list(MODELS), help="of the gateway")
    options = parser.parse_args()
    print(f"commit {commit()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, TLS, P-384 keys\n")
    print(light(options.starts) + "\n", flush=True)
    if options.model:
        print(
            "| clients | model | gateway ready, s | round, s | answered | gateway MB, at most |\n"
            "|---|---|---|---|---|---|"
        )
    for model in options.model:
        print(gateway(options.clients, model), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


def light(starts: int) -> str:
    """Return how long flower-client takes until it is connected, and what it holds after some rounds."""
    with _fleet() as fleet:
        keys = numpy_app.keys(nodes=1, cycles=1, **{"blocks": 1, "rounds-per-block": 10**6})
        seconds, sizes = [], []
        with fleet.served(keys) as (_, port):
            for _ in range(starts):
                with _client(fleet, port, ["--app", numpy_app.APP], fleet.app) as (taken, pid):
                    seconds.append(taken)
                    done = len(fleet.rows()) + _ROUNDS
                    wait_until(lambda done=done: len(fleet.rows()) >= done, _MINUTES, "rounds")  # type: ignore[misc]
                    assert not _maps(pid, "torch"), "the light device has loaded torch"
                    sizes.append(_status(pid, "VmHWM") / MEGA)
    return (
        f"light device, {starts} starts: connected after {statistics.median(seconds):.2f} s (slowest "
        f"{max(seconds):.2f} s), at most {max(sizes):.0f} MB resident within {_ROUNDS} rounds"
    )


def gateway(clients: int, model: str) -> str:
    """Return what rounds take in which one process trains all clients."""
    with _fleet() as fleet:
        shape = [int(side) for side in MODELS[model].split("x")]
        data = fleet.folder / "shards"
        write_shards(data, clients, shape)
        keys = {"strategy": "mc-psgd", "model": model, "shape": MODELS[model], "classes": 10, "blocks": _BLOCKS,
                "nodes": 1, "cycles": 2, "rounds-per-block": 2}  # fmt: skip
        with fleet.served(keys) as (server, port), _client(fleet, port, ["--data", str(data)], data) as (taken, pid):
            wait_until(lambda: len(fleet.rows()) >= 7 or server.poll() is not None, _MINUTES, "rounds of the gateway")
            size = _status(pid, "VmHWM") / MEGA
        rows = fleet.rows()[1:]
    seconds, answered = (statistics.median(row[name] for row in rows) for name in ("seconds", "clients-answered"))
    return table_row(f"{clients:,}", model, f"{taken:.1f}", f"{seconds:.2f}", f"{answered:g}", f"{size:.0f}")


def write_shards(folder: Path, clients: int, shape: Sequence[int]) -> None:
    """Write a folder of shards with random examples."""
    generator = np.random.default_rng(0)
    for client in range(clients):
        of_client = folder / f"client-{client:05d}"
        of_client.mkdir(parents=True)
        for block in range(_BLOCKS):
            x = generator.standard_normal((_EXAMPLES, *shape), dtype=np.float32)
            np.savez(of_client / f"block-{block}.npz", x=x, y=generator.integers(0, 10, _EXAMPLES))
    manifest = {"format": 1, "blocks": _BLOCKS, "classes": 10, "shape": shape, "clients": list(range(clients))}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@contextmanager
def _fleet() -> Iterator[AppFleet]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        variables = {**environment(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        fleet = AppFleet(numpy_app.write(folder / "app"), folder, 1, Path(sys.executable).parent, variables)
        fleet.prepare()
        yield fleet


@contextmanager
def _client(fleet: AppFleet, port: int, what: Sequence[str], cwd: Path) -> Iterator[tuple[float, int]]:
    """Run flower-client; yield the seconds from its start until it was connected, and its process."""
    log, begun = fleet.folder / "client.log", time.monotonic()
    line = [str(fleet.bin / "flower-client"), "--server", f"127.0.0.1:{port}", "--ca", f"{fleet.folder}/tls/ca.crt",
            "--key", f"{fleet.folder}/key-0", *what]  # fmt: skip
    if "--app" in what:
        line += ["--node-config", "partition-id=0 num-partitions=1"]
    with running(line, log, fleet.variables, cwd=cwd) as process:
        while "connected as node" not in log.read_text():
            if process.poll() is not None or time.monotonic() - begun > _MINUTES:
                raise RuntimeError(log.read_text())
            time.sleep(0.005)
        yield time.monotonic() - begun, process.pid


def _status(pid: int, field: str) -> float:
    """Return bytes of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def _maps(pid: int, name: str) -> bool:
    return name in Path(f"/proc/{pid}/maps").read_text()


if __name__ == "__main__":
    main()
