"""A real flower-server and many devices on one machine, and what the server takes: for benchmarks/fleet.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
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


@dataclass(frozen=True)
class Fleet:
    """What runs. stock: Flower's SuperLink and FedAvg, without TLS and keys. keys: further keys of the run."""

    devices: int
    model: str = "linear"
    rounds: int = 8
    participation: float = 1.0
    workers: int = 1
    stock: bool = False
    # Nodes that the server waits for; 0: all devices.
    nodes: int = 0
    seconds: float = 0.0
    # Keys that are admitted beside those of the devices.
    spare: int = 0
    # Files that the server may have open; 0: as the system says.
    files: int = 0
    keys: tuple[tuple[str, object], ...] = ()
    # Flags of the server beside the keys of the run.
    flags: tuple[str, ...] = ()


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

    def own(self) -> float:
        """Return the resident bytes that are no pages of files, such as libraries."""
        return sum(_resident(pid, without_files=True) for pid in family(self.pid))

    @contextmanager
    def watched(self) -> Iterator[None]:
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.1):
                self.samples.append((time.time(), self.memory()))

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            stop.set()

    def most(self, since: float) -> float:
        return max((size for moment, size in self.samples if moment >= since), default=0.0)


@dataclass
class Lab:
    """A server with its devices, in ``folder``. The devices do what they are told, by one line each."""

    folder: Path
    address: str
    usage: Usage
    workers: list[subprocess.Popen[str]]
    fleet: Fleet

    def connected(self) -> float:
        """Return after how many seconds the last device was connected."""
        logs = [self._log(number) for number in range(len(self.workers))]
        wait_until(lambda: all("connected" in log.read_text() for log in logs), 900, "all devices to be connected")
        return max(float(log.read_text().splitlines()[0].split()[-1]) for log in logs)

    def tell(self, line: str) -> None:
        for worker in self.workers:
            assert worker.stdin
            worker.stdin.write(line + "\n")
            worker.stdin.flush()

    def counts(self) -> dict[str, int]:
        """Return what all devices have counted, as benchmarks/devices.py says; reasons go to standard error."""
        self.tell("count")
        for number in range(len(self.workers)):
            log = self._log(number)
            wait_until(lambda log=log: "answered" in log.read_text(), 60, "the devices' counts")  # type: ignore[misc]
        said = [json.loads(self._log(n).read_text().splitlines()[-1]) for n in range(len(self.workers))]
        if reasons := sum((Counter(one.pop("reasons")) for one in said), Counter[str]()):
            print(f"refused: {dict(reasons)}", file=sys.stderr)
        return {name: sum(one[name] for one in said) for name in said[0]}

    def devices_cpu(self) -> float:
        """Return the CPU seconds of all devices."""
        return sum(_cpu(worker.pid) for worker in self.workers)

    def rows(self) -> list[dict[str, float]]:
        """Return the lines of metrics.jsonl that are whole."""
        try:
            lines = (self.folder / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for_rows(self, count: int, seconds: float = 3600) -> None:
        wait_until(lambda: len(self.rows()) >= count, seconds, f"{count} rounds")

    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def _log(self, worker: int) -> Path:
        return self.folder / f"devices-{worker}.log"


@contextmanager
def lab(fleet: Fleet) -> Iterator[Lab]:
    """Run a server and its devices, which come at once as soon as it listens."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        variables = {**environment(folder / "flwr"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        server = stack.enter_context(running(_server(fleet, folder, port), folder / "server.log", variables))
        log = folder / "server.log"
        wait_until(lambda: "listening on" in log.read_text() or server.poll() is not None, 300, "the server")
        if server.poll() is not None:
            raise RuntimeError(log.read_text())
        made = Lab(folder, f"127.0.0.1:{port}", Usage(server.pid), [], fleet)
        security = [] if fleet.stock else ["--ca", str(folder / "tls" / "ca.crt")]
        for worker in range(fleet.workers):
            first, last = (fleet.devices * part // fleet.workers for part in (worker, worker + 1))
            line = [sys.executable, "-m", "benchmarks.devices", "--server", made.address, *security, "--first",
                    str(first), "--count", str(last - first), "--seconds", str(fleet.seconds)]  # fmt: skip
            made.workers.append(stack.enter_context(_piped(line, folder / f"devices-{worker}.log", variables)))
        yield made


def _server(fleet: Fleet, folder: Path, port: int) -> list[str]:
    """Return the command of the server, whose keys and certificates are made."""
    keys: dict[str, object] = {
        "strategy": "fedavg" if fleet.stock else "mc-psgd", "model": fleet.model, "shape": MODELS[fleet.model],
        "classes": 10, "blocks": BLOCKS, "nodes": fleet.nodes or fleet.devices, "cycles": 2,
        "rounds-per-block": fleet.rounds // (2 * BLOCKS), "participation": fleet.participation,
        "output": folder / "run", "local-iterations": 1, **dict(fleet.keys),
    }  # fmt: skip
    command = [sys.executable, "-m", "perennial.server.cli", "--state-dir", str(folder), "--port", str(port)]
    command += [part for key, value in keys.items() for part in (f"--{key}", str(value))] + list(fleet.flags)
    if fleet.stock:
        return [*command, "--insecure", "--runtime", "stock"]
    make_keys(folder, fleet.devices + fleet.spare)
    if fleet.files:
        command = ["sh", "-c", f'ulimit -n {fleet.files}; exec "$@"', "server", *command]
    return [*command, "--tls-cert", str(folder / "tls/server.crt"), "--tls-key", str(folder / "tls/server.key")]


def commit() -> str:
    """Return what git calls the tree."""
    said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def table_row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def make_keys(folder: Path, devices: int) -> None:
    script = ROOT / "deploy" / "certificates.sh"
    subprocess.run([script, folder / "tls", "127.0.0.1"], check=True, stdout=subprocess.DEVNULL)
    (folder / "nodes").mkdir()
    for number in range(devices):
        public = key_of(number).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / "nodes" / f"device-{number}.pub").write_bytes(public + b"\n")


@contextmanager
def _piped(command: list[str], log: Path, variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command that takes lines, until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
        )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int, *, without_files: bool = False) -> float:
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return (resident - without_files * shared) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0.0
