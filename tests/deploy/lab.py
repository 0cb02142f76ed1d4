"""A laboratory of hosts: network namespaces joined by a bridge, with the real commands running in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVER, OUTSIDER = "server", "outsider"
CLIENT = ("-m", "perennial.client.cli")
CLIENTS = 4
PORT = 8000


class Network:
    """Hosts 10.77.X.n, each in a namespace of its own, around a switch in another one."""

    def __init__(self, number: int) -> None:
        # Not by the process id: what a killed run left behind may have that of a process of today.
        self._prefix = f"perennial-{uuid4().hex[:8]}"
        self._subnet = f"10.77.{number}"
        self._hosts: list[str] = []
        self._add_namespace("switch")
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")

    def add(self, host: str) -> str:
        """Plug a host in; return its address."""
        self._add_namespace(host)
        address = f"{self._subnet}.{len(self._hosts)}"
        cable = ("type", "veth", "peer", "name", "eth0", "netns", self.name(host))
        self._ip("switch", "link", "add", f"to-{host}", *cable)
        self._ip("switch", "link", "set", f"to-{host}", "master", "bridge", "up")
        self._ip(host, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip(host, "link", "set", device, "up")
        return address

    def name(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def cut(self, host: str) -> None:
        self._ip("switch", "link", "set", f"to-{host}", "down")

    def mend(self, host: str) -> None:
        self._ip("switch", "link", "set", f"to-{host}", "up")

    def close(self) -> None:
        for host in self._hosts:
            subprocess.run(["ip", "netns", "delete", self.name(host)], check=False)

    def _add_namespace(self, host: str) -> None:
        subprocess.run(["ip", "netns", "add", self.name(host)], check=True)
        self._hosts.append(host)

    def _ip(self, host: str, *arguments: str) -> None:
        subprocess.run(["ip", "-netns", self.name(host), *arguments], check=True)


class Process:
    """A command that runs in a namespace, and what it has said."""

    def __init__(
        self, namespace: str, arguments: list[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        log.touch()
        self._log, self._start = log, log.stat().st_size
        self._variables = variables or {}
        self.pid = self._launch(namespace, arguments)

    def _launch(self, namespace: str, arguments: list[str]) -> int:
        """Start the command, which adds to the log; return its process id."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(self._log.parent / "flwr"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self._variables,
        }
        with self._log.open("ab") as output:
            # `ip netns exec` becomes the command itself: the process id is the command's.
            self._popen = subprocess.Popen(
                ["ip", "netns", "exec", namespace, sys.executable, *arguments],
                cwd=self._log.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self._popen.pid

    def said(self) -> str:
        return self._log.read_bytes()[self._start :].decode(errors="replace")

    def wait_for(self, text: str, seconds: float = 600) -> None:
        wait_until(lambda: text in self.said() or not self.running(), seconds, f"{text!r} in\n{self.said()[-2000:]}")
        assert text in self.said(), f"{text!r} was not said before the end:\n{self.said()[-2000:]}"

    def running(self) -> bool:
        return self._popen.poll() is None

    def end(self, number: int = signal.SIGKILL, seconds: float = 120) -> int:
        """Send a signal; return the exit code once the process is gone."""
        if self.running():
            self._popen.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:g} s:\n{self.said()[-3000:]}") from None


class Lab:
    """A server, four devices with keys and shards, and an outsider. variables: of processes that are started."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.network = folder, Network(number)
        self._processes: list[Process] = []
        self.variables: dict[str, str] = {}
        self.state = folder / "state"
        self.address = self.network.add(SERVER)
        for host in [*map(device, range(CLIENTS)), OUTSIDER]:
            self.network.add(host)
            self.script("node-key.sh", str(folder / f"{host}.key"))
        self.script("certificates.sh", str(folder / "tls"), self.address)
        self.script("admit.sh", str(self.state), *(str(folder / f"{device(c)}.key.pub") for c in range(CLIENTS)))
        write_shards(folder)

    def client(
        self, number: int, *, program: tuple[str, ...] = ("-m", "perennial.client.cli"), host: str = ""
    ) -> Process:
        """Start a device; in place of ``flower-client``, ``program`` may be a worse one."""
        host = host or device(number)
        return self.start(
            host,
            [*program, "--server", f"{self.address}:{PORT}", "--data", str(self.folder / "shards" / device(number)),
             "--ca", str(self.folder / "tls" / "ca.crt"), "--key", str(self.folder / f"{host}.key")],
        )  # fmt: skip

    def server(self, output: Path, *flags: str, **keys: object) -> Process:
        settings = [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]
        tls = self.folder / "tls"
        return self.start(
            SERVER,
            ["-m", "perennial.server.cli", "--state-dir", str(self.state), "--output", str(output), "--port", str(PORT),
             "--tls-cert", str(tls / "server.crt"), "--tls-key", str(tls / "server.key"),
             "--data", str(self.folder / "shards" / "all"), "--fair-time", "0", *settings, *flags],
        )  # fmt: skip

    def start(self, host: str, arguments: list[str]) -> Process:
        process = Process(self.network.name(host), arguments, self.folder / f"{host}.log", self.variables)
        self._processes.append(process)
        return process

    def run(self, host: str, *arguments: str) -> str:
        """Return what a short command prints on a host."""
        return subprocess.run(
            ["ip", "netns", "exec", self.network.name(host), *arguments],
            check=True, capture_output=True, text=True, timeout=300,
        ).stdout  # fmt: skip

    def close(self) -> None:
        for process in self._processes:
            if process.running():
                process.end()
        self.network.close()

    @staticmethod
    def script(name: str, *arguments: str) -> None:
        subprocess.run([ROOT / "deploy" / name, *arguments], check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def laboratory(folder: Path, number: int) -> Iterator[Lab]:
    lab = Lab(folder, number)
    try:
        yield lab
    finally:
        lab.close()


def device(number: int) -> str:
    return f"device-{number}"


def write_shards(folder: Path) -> None:
    """Cut the digits for the devices; ``all`` is what a simulation of the same experiment reads."""
    from perennial.common.command.config import RunConfig
    from perennial.common.data import shards
    from perennial.common.data.source import open_shards

    source = open_shards(RunConfig(data="digits", blocks=2, clients=CLIENTS, labels_per_block=5))
    for client in range(CLIENTS):
        shards.write(folder / "shards" / device(client), source, [client], with_test=False)
    shards.write(folder / "shards" / "all", source, range(CLIENTS))


def rows(output: Path) -> list[dict[str, Any]]:
    """Return the whole lines of metrics.jsonl so far."""
    try:
        text = (output / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
