"""Eight devices, their server and a stranger in network namespaces, with a bad network between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.chaos.fault_plan import DEVICES, TUNNELLED
from tests.chaos.forked import Forked
from tests.conftest import make_data, write_folder
from tests.deploy.lab import Lab, Network, Process
from tests.processes import wait_until
from tests.reference import Data

PORT, FIRST_PORT = 8000, 9000
SERVER, MIDDLE, STRANGER = "server", "middle", "stranger"
SERVER_END, DEVICE_END = "10.78.0.1", "10.78.0.2"
STEPS, GAMMA, ETA = 2, 0.3, 0.25
# A client that nobody has.
STRANGE = DEVICES
SETTINGS: dict[str, object] = {
    "strategy": "mc-psgd", "model": "linear", "batch-size": 0, "local-iterations": STEPS, "lr-mixed": GAMMA,
    "lr-separate": ETA, "nodes": DEVICES, "min-replies": 0.5, "round-timeout": 5, "round-attempts": 0, "engine": "loop",
    "eval-every": 50, "quarantine-rounds": 3, "node-timeout": 0,
}  # fmt: skip


class FleetLab:
    """The hosts, and the processes on them. rounds: of each block, of which there are two."""

    def __init__(self, folder: Path, number: int, *, rounds_per_block: int, cycles: int, seed: int) -> None:
        self.folder, self.network = folder, Network(number)
        self._keys = {"rounds-per-block": rounds_per_block, "cycles": cycles, "seed": seed, **SETTINGS}
        self._started: list[Process] = []
        addresses = {host: self.network.add(host) for host in (SERVER, MIDDLE, STRANGER, *map(_name, range(DEVICES)))}
        self.data = self._write_data(seed)
        for host in (STRANGER, *map(_name, range(DEVICES))):
            Lab.script("node-key.sh", str(folder / f"{host}.key"))
        Lab.script("admit.sh", str(folder / "state"), *(str(folder / f"{_name(i)}.key.pub") for i in range(DEVICES)))
        Lab.script("certificates.sh", str(folder / "tls"), addresses[SERVER], addresses[MIDDLE], SERVER_END)
        # Small, so that it can be filled; of its own, so that nobody else's disk is.
        self.output = folder / "disk" / "run"
        (folder / "disk").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder / "disk"], check=True)
        self._addresses = {i: f"{addresses[MIDDLE]}:{FIRST_PORT + i}" for i in range(TUNNELLED)}
        self._addresses[TUNNELLED] = f"{SERVER_END}:{PORT}"
        self.proxy, self.tunnel = folder / "proxy.sock", folder / "tunnel.sock"
        self._start(MIDDLE, "-m", "tests.chaos.proxy", str(self.proxy), f"{addresses[SERVER]}:{PORT}",
                    str(FIRST_PORT), str(DEVICES), str(seed), kind=Process)  # fmt: skip
        names = self.network.name(SERVER), self.network.name(_name(TUNNELLED))
        # It enters the namespaces of both ends itself.
        self._start(MIDDLE, "-m", "tests.chaos.tunnel", str(self.tunnel), names[0], SERVER_END, names[1], DEVICE_END,
                    str(seed), kind=Process)  # fmt: skip
        wait_until(lambda: self.proxy.exists() and self.tunnel.exists(), 120, "the network")
        self.hold_at(0)
        self.devices = [self.device(i) for i in range(DEVICES)]
        self.stranger = self.device(STRANGE, host=STRANGER)
        self.server = self.serve()

    def device(self, number: int, behaviour: str = "honest", minutes: int = 0, *, host: str = "") -> Process:
        host = host or _name(number)
        address = self._addresses.get(number, self._addresses[0])
        return self._start(
            host, behaviour, str(minutes), "--server", address, "--data", str(self.shards(number)),
            "--ca", str(self.folder / "tls" / "ca.crt"), "--key", str(self.folder / f"{host}.key"),
        )  # fmt: skip

    def serve(self, minutes: int = 0) -> Process:
        tls = self.folder / "tls"
        keys = [part for key, value in self._keys.items() for part in (f"--{key}", str(value))]
        return self._start(
            SERVER, "server", str(minutes), "--state-dir", str(self.folder / "state"), "--resume",
            "--output", str(self.output), "--port", str(PORT), "--data", str(self.folder / "all"),
            "--tls-cert", str(tls / "server.crt"), "--tls-key", str(tls / "server.key"), *keys,
        )  # fmt: skip

    def hold_at(self, number: int) -> None:
        """Let the server wait once so many rounds are done."""
        (self.folder / "limit.new").write_text(str(number))
        (self.folder / "limit.new").replace(self.folder / "limit")

    def shards(self, number: int) -> Path:
        return self.folder / f"shards-{number}"

    def close(self) -> None:
        for process in self._started:
            if process.running():
                process.end()
        subprocess.run(["umount", "--lazy", self.folder / "disk"], check=False)
        self.network.close()

    def _start(self, host: str, *arguments: str, kind: type[Process] = Forked) -> Process:
        process = kind(self.network.name(host), list(arguments), self.folder / f"{host}.log")
        self._started.append(process)
        return process

    def _write_data(self, seed: int) -> Data:
        """Write each client's shards into a folder of its own; the stranger's client is nobody's."""
        data = make_data(2, DEVICES + 1, seed=seed)
        for number in range(DEVICES + 1):
            whole = write_folder(self.folder / f"whole-{number}", data, test=False)
            for other in set(range(DEVICES + 1)) - {number}:
                shutil.rmtree(whole / f"client-{other:05d}")
            manifest = whole / "manifest.json"
            listed = str(list(range(DEVICES + 1)))
            manifest.write_text(manifest.read_text().replace(listed, f"[{number}]"))
            whole.rename(self.shards(number))
        write_folder(self.folder / "all", [block[:DEVICES] for block in data])
        return data

    def change_data(self, number: int, block: int) -> Callable[[], None]:
        """Put another shard in the place of a device's; return what puts it back."""
        path = self.shards(number) / f"client-{number:05d}" / f"block-{block}.npz"
        before, other = path.read_bytes(), path.with_suffix(".other")
        with np.load(path) as shard, other.open("wb") as file:
            np.savez(file, x=-shard["x"], y=shard["y"][::-1])
        os.replace(other, path)

        def put_back() -> None:
            other.write_bytes(before)
            os.replace(other, path)

        return put_back


def _name(number: int) -> str:
    return f"device-{number}"
