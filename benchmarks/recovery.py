"""Seconds until all devices are in a round again after one of them, or their server, was killed with -9.

    python -m benchmarks.recovery

Real commands on this machine, by TLS and keys: flower-server, and four flower-clients. What was killed is started again
at once, or after some seconds. A process is up when it could be used: a device when it is connected, a server when it
listens. From then on the time is taken until a round has ended in which all devices took part; what the start took is
said apart.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet_lab import ROOT, commit, table_row
from benchmarks.processes import wait_until
from perennial.common.command.config import RunConfig
from perennial.common.command.flower import command, environment, free_port
from perennial.common.data import shards
from perennial.common.data.source import open_shards

DEVICES, BLOCKS = 4, 2
# A run that does not end meanwhile.
KEYS = {"strategy": "mc-psgd", "nodes": DEVICES, "rounds-per-block": 50, "cycles": 10_000, "local-iterations": 5}
SECONDS = 300.0
UP = {"device": "connected as node", "server": "listening on"}
_TAIL = 2**17


@dataclass(frozen=True)
class Back:
    """What took how long: from the start of a process until it is up, and from there to a round with all devices."""

    start: float
    complete: float


class Fleet:
    """A server and its devices; ``device-0`` and so on, and ``server``, are the names of the processes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._metrics = folder / "run" / "metrics.jsonl"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._offsets: dict[str, int] = {}
        self._prepare()
        for name in ("server", *map(device, range(DEVICES))):
            self.start(name)

    def _prepare(self) -> None:
        source = open_shards(RunConfig(data="digits", blocks=BLOCKS, clients=DEVICES, labels_per_block=5))
        shards.write(self._folder / "all", source, range(DEVICES))
        _run("certificates.sh", self._folder / "tls", "127.0.0.1")
        for number in range(DEVICES):
            shards.write(self._folder / f"shards-{device(number)}", source, [number], with_test=False)
            _run("node-key.sh", self._folder / f"{device(number)}.key")
            _run("admit.sh", self._folder / "state", self._folder / f"{device(number)}.key.pub")

    def start(self, name: str) -> None:
        log = self._log(name)
        with log.open("ab") as output:
            self._offsets[name] = output.tell()
            self._running[name] = subprocess.Popen(
                self._command(name), cwd=self._folder, env=environment(self._folder / "flwr"), stdout=output,
                stderr=output,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()

    def close(self) -> None:
        for name in self._running:
            self.kill(name)

    def up(self, name: str) -> bool:
        if self._running[name].poll() is not None:
            raise RuntimeError(f"{name} has ended:\n{self._said(name)[-2000:]}")
        return UP[name.partition("-")[0]] in self._said(name)

    def lines(self) -> list[bytes]:
        """Return the newest lines of metrics.jsonl that are whole."""
        try:
            with self._metrics.open("rb") as file:
                file.seek(max(0, self._metrics.stat().st_size - _TAIL))
                return [line for line in file.read().splitlines(keepends=True)[1:] if line.endswith(b"\n")]
        except FileNotFoundError:
            return []

    def is_complete(self, known: set[bytes]) -> bool:
        """Whether all devices took part in a round whose line is not known."""
        new = [line for line in self.lines() if line not in known]
        return any(len(json.loads(line)["accepted"]) == DEVICES for line in new)

    def _command(self, name: str) -> list[str]:
        tls, address = self._folder / "tls", f"127.0.0.1:{self._port}"
        if name != "server":
            line = [command("flower-client"), "--server", address, "--data", self._folder / f"shards-{name}"]
            line += ["--ca", tls / "ca.crt", "--key", self._folder / f"{name}.key"]
        else:
            line = [command("flower-server"), "--port", self._port, "--state-dir", self._folder / "state", "--resume"]
            line += ["--data", self._folder / "all", "--output", self._folder / "run"]
            line += ["--tls-cert", tls / "server.crt", "--tls-key", tls / "server.key"]
            line += [part for key, value in KEYS.items() for part in (f"--{key}", value)]
        return list(map(str, line))

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _said(self, name: str) -> str:
        return self._log(name).read_bytes()[self._offsets[name] :].decode(errors="replace")


def device(number: int) -> str:
    return f"device-{number}"


def back(fleet: Fleet, name: str, away: float) -> Back:
    """Kill a process and start it again; return how long it took to come back."""
    fleet.kill(name)
    time.sleep(away)
    begun = time.monotonic()
    fleet.start(name)
    soon(lambda: fleet.up(name), f"{name} to be up")
    # A server that goes on cuts lines off the end, and adds others: all that were there so far are known.
    up, known = time.monotonic(), set(fleet.lines())
    soon(lambda: fleet.is_complete(known), "a complete round")
    return Back(up - begun, time.monotonic() - up)


def soon(condition: Callable[[], bool], what: str) -> None:
    """Wait for what is measured, at a finer grain than ``wait_until``."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SECONDS:g} s: {what}")
        time.sleep(0.01)


@contextmanager
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        made = Fleet(Path(folder))
        try:
            wait_until(lambda: made.is_complete(set()), SECONDS, "the first complete round")
            yield made
        finally:
            made.close()


def _run(script: str, *arguments: object) -> None:
    subprocess.run([ROOT / "deploy" / script, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10, help="of each kind (default: 10)")
    parser.add_argument("--away", type=float, nargs="+", default=[0.0, 20.0],
                        help="seconds between the kill and the start (default: 0 20)")  # fmt: skip
    options = parser.parse_args()
    rng, found = random.Random(0), dict[tuple[str, float], list[Back]]()
    with fleet() as made:
        for away in options.away:
            for turn in range(options.times):
                for kind, name in (("device", device(turn % DEVICES)), ("server", "server")):
                    # At work, wherever that is.
                    time.sleep(rng.uniform(0.5, 1.5))
                    found.setdefault((kind, away), []).append(back(made, name, away))
    print(f"commit {commit()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {DEVICES} devices\n")
    print(table_row("killed", "away, s", "times", "its start, s (median, most)", "then, to a complete round, s"))
    print("|---|---|---|---|---|")
    for (kind, away), backs in found.items():
        starts, completes = [one.start for one in backs], [one.complete for one in backs]
        print(table_row(kind, f"{away:g}", len(backs), *map(_spread, (starts, completes))))
    return 0


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"


if __name__ == "__main__":
    sys.exit(main())
