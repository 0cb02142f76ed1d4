"""What a fleet costs its server: seconds a round, CPU and memory, by the number of devices.

    python -m benchmarks.fleet                          # 10, 100 and 1,000 devices; linear and CNN
    python -m benchmarks.fleet --devices 10000 --participation 0.05
    python -m benchmarks.fleet --devices 10000 --idle 60
    python -m benchmarks.fleet --devices 10 --stock     # Flower's SuperLink and FedAvg, without TLS and keys

A real flower-server with TLS and keys trains with MC-PSGD; devices are those of benchmarks/devices.py, in as many
processes as there are cores, on the same machine: what they take is not the server's, but slows it down.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.devices import BLOCKS, key_of
from benchmarks.processes import family, running, wait_until
from perennial.common.command.flower import environment, free_port

ROOT = Path(__file__).resolve().parents[1]
MODELS = {"linear": "64", "cnn": "3x32x32"}
MEGA = 1e6


@dataclass
class Usage:
    """Of a process and all that it started: CPU seconds, and memory over time."""

    pid: int
    samples: list[tuple[float, float]] = field(default_factory=list)

    def cpu(self) -> float:
        return sum(_cpu(pid) for pid in family(self.pid))

    def memory(self) -> float:
        """Return the resident bytes now."""
        return sum(_resident(pid) for pid in family(self.pid))

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            self.samples.append((time.time(), self.memory()))

    def most(self, since: float) -> float:
        return max((size for moment, size in self.samples if moment >= since), default=0.0)


@dataclass(frozen=True)
class Measured:
    devices: int
    model: str
    link: str
    connected: float
    round: float
    slowest: float
    cpu: float
    memory: float
    growth: float

    def row(self) -> str:
        cells = (f"{self.devices:,}", self.model, self.link, f"{self.connected:.1f}", f"{self.round:.2f}",
                 f"{self.slowest:.2f}", f"{self.cpu:.2f}", f"{self.memory:.0f}", f"{self.growth:.0f}")  # fmt: skip
        return "| " + " | ".join(cells) + " |"


HEAD = (
    "| devices | model | link | all in, s | round, s | slowest, s | server CPU s a round | server MB | grows by MB |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--model", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=8, help="a multiple of 4 (default: 8)")
    parser.add_argument("--participation", type=float, default=1.0)
    parser.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="measure waiting devices only")
    parser.add_argument("--stock", action="store_true", help="Flower's SuperLink and FedAvg instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of devices")
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, P-384 keys, {'no ' if options.stock else ''}TLS\n")
    if options.idle:
        for devices in options.devices:
            print(idle(devices, options.idle, options.workers), flush=True)
        return
    print(HEAD, flush=True)
    for model in options.model:
        for devices in options.devices:
            print(measure(devices, model, options).row(), flush=True)


def measure(devices: int, model: str, options: argparse.Namespace) -> Measured:
    """Return what rounds with so many devices cost, the first one left out."""
    with fleet(devices, model, options.rounds, options.participation, options.workers, options.stock) as (
        usage,
        folder,
    ):
        connected = max(wait_for_connections(folder, options.workers))
        stop = threading.Event()
        threading.Thread(target=usage.watch, args=(stop,), daemon=True).start()
        metrics = folder / "run" / "metrics.jsonl"
        wait_until(lambda: rows(metrics), 900, "the first round")
        cpu, start, before = usage.cpu(), time.time(), usage.memory()
        wait_until(lambda: len(rows(metrics)) >= options.rounds - 1, 3600, f"{options.rounds} rounds")
        done = len(rows(metrics)) - 1
        cpu = (usage.cpu() - cpu) / done
        stop.set()
        seconds = [row["seconds"] for row in rows(metrics)[1:]]
        growth = usage.most(start) - before
        title = "stock, fedavg" if options.stock else "perennial, mc-psgd"
        return Measured(
            devices,
            model,
            title,
            connected,
            statistics.median(seconds),
            max(seconds),
            cpu,
            before / MEGA,
            growth / MEGA,
        )


def idle(devices: int, seconds: float, workers: int) -> str:
    """Return what devices cost that wait for a run which never begins."""
    with fleet(devices, "linear", 4, 1.0, workers, False, nodes=devices + 1) as (usage, folder):
        connected = max(wait_for_connections(folder, workers))
        log = folder / "server.log"
        wait_until(lambda: f"{devices} of {devices + 1} are here" in log.read_text(), 600, "all to say who they are")
        # Long enough for all to wait, each for its own time.
        time.sleep(min(60.0, seconds))
        cpu = usage.cpu()
        time.sleep(seconds)
        share = (usage.cpu() - cpu) / seconds
        return (
            f"{devices:,} devices: all in after {connected:.1f} s; waiting they cost {100 * share:.1f} % of a core and "
            f"{usage.memory() / MEGA:.0f} MB"
        )


@contextmanager
def fleet(
    devices: int, model: str, rounds: int, participation: float, workers: int, stock: bool, *, nodes: int = 0
) -> Iterator[tuple[Usage, Path]]:
    """A server and its devices; yields the server's usage and the folder of both."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        variables = {**environment(folder / "flwr"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        keys = {
            "strategy": "fedavg" if stock else "mc-psgd", "model": model, "shape": MODELS[model], "classes": 10,
            "blocks": BLOCKS, "nodes": nodes or devices, "cycles": 2, "rounds-per-block": rounds // 4,
            "participation": participation, "output": folder / "run", "local-iterations": 1,
        }  # fmt: skip
        flags = [part for key, value in keys.items() for part in (f"--{key}", str(value))]
        command = [
            sys.executable,
            "-m",
            "perennial.server.cli",
            "--state-dir",
            str(folder),
            "--port",
            str(port),
            *flags,
        ]
        security: list[str] = []
        if stock:
            command += ["--insecure", "--runtime", "stock"]
        else:
            make_keys(folder, devices)
            command += [
                "--tls-cert",
                str(folder / "tls" / "server.crt"),
                "--tls-key",
                str(folder / "tls" / "server.key"),
            ]
            security = ["--ca", str(folder / "tls" / "ca.crt")]
        server = stack.enter_context(running(command, folder / "server.log", variables))
        wait_until(lambda: "listening on" in (folder / "server.log").read_text(), 300, "the server")
        for worker in range(workers):
            first, last = (devices * part // workers for part in (worker, worker + 1))
            line = [sys.executable, "-m", "benchmarks.devices", "--server", f"127.0.0.1:{port}", *security,
                    "--first", str(first), "--count", str(last - first)]  # fmt: skip
            stack.enter_context(piped(line, folder / f"devices-{worker}.log", variables))
        yield Usage(server.pid), folder


@contextmanager
def piped(command: list[str], log: Path, variables: dict[str, str]) -> Iterator[None]:
    """Run a command until the end of the block; it sees it by the end of its input."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        process.communicate()


def make_keys(folder: Path, devices: int) -> None:
    script = ROOT / "deploy" / "certificates.sh"
    subprocess.run([script, folder / "tls", "127.0.0.1"], check=True, stdout=subprocess.DEVNULL)
    (folder / "nodes").mkdir()
    for number in range(devices):
        public = key_of(number).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / "nodes" / f"device-{number}.pub").write_bytes(public + b"\n")


def wait_for_connections(folder: Path, workers: int) -> list[float]:
    """Return the seconds that each process of devices took until all of its own were connected."""
    logs = [folder / f"devices-{worker}.log" for worker in range(workers)]
    wait_until(lambda: all("connected" in log.read_text() for log in logs), 600, "all devices to be connected")
    return [float(log.read_text().splitlines()[0].split()[-1]) for log in logs]


def rows(metrics: Path) -> list[dict[str, float]]:
    try:
        return [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0.0


if __name__ == "__main__":
    main()
