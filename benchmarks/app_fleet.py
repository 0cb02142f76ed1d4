"""A user's own app, deployed on this machine with TLS and keys: flower-server, and nodes of ours or of Flower's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from benchmarks.processes import running, wait_until
from perennial.common.command.flower import environment, free_port

CERTIFICATES = Path(__file__).parents[1] / "deploy" / "certificates.sh"


@dataclass(frozen=True)
class AppFleet:
    """app: the folder that the app lies in. folder: for everything else. nodes: how many there are.

    bin: the folder with the commands. variables: the environment of the server and of nodes of ours.
    """

    app: Path
    folder: Path
    nodes: int
    bin: Path
    variables: Mapping[str, str]

    @property
    def run(self) -> Path:
        return self.folder / "state" / "run"

    def prepare(self) -> None:
        """Make certificates and keys, and admit the nodes."""
        admitted = self.folder / "state" / "nodes"
        admitted.mkdir(parents=True)
        subprocess.run([CERTIFICATES, self.folder / "tls", "server.example"], check=True, stdout=subprocess.DEVNULL)
        for number in range(self.nodes):
            key = generate_private_key(SECP384R1())
            secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            (self.folder / f"key-{number}").write_bytes(secret)
            (admitted / f"{number}.pub").write_bytes(
                key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            )

    @contextmanager
    def served(self, keys: Mapping[str, object], *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        """Serve a run; yield the process and its port."""
        said, tls = self.folder / "server.log", self.folder / "tls"
        line = [str(self.bin / "flower-server"), "--port", str(free_port()), "--state-dir", str(self.folder / "state")]
        line += ["--tls-cert", str(tls / "server.crt"), "--tls-key", str(tls / "server.key"), *flags]
        for key, one in keys.items():
            line += [f"--{key}", one if isinstance(one, str) else json.dumps(one)]
        with running(line, said, self.variables, cwd=self.app) as server:
            wait_until(lambda: "listening on" in said.read_text() or server.poll() is not None, 240, "the server")
            port = re.search(r"listening on [\d.]+:(\d+)", said.read_text())
            assert port, said.read_text()
            yield server, int(port[1])

    @contextmanager
    def connected(self, kind: str, port: int, app: str) -> Iterator[None]:
        """Run the nodes: ``quick``, by flower-client with the app; ``stock``, by Flower's own command without it.

        mixed: the first one is stock, the others are quick.
        """
        started: list[subprocess.Popen[bytes]] = []
        with ExitStack() as stack:
            for number in range(self.nodes):
                is_stock = kind == "stock" or (kind == "mixed" and number == 0)
                line = (self._supernode if is_stock else self._client)(number, port, app)
                log, variables = self.folder / f"{kind}-{number}.log", self.variables
                if is_stock:
                    home = self.folder / f"flower-{number}"
                    # Nothing leads it to the app but the server, and nothing to our package.
                    variables = {**environment(home), "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
                    home.mkdir()
                    started.append(stack.enter_context(running(line, log, variables, cwd=home)))
                else:
                    started.append(stack.enter_context(running(line, log, variables, cwd=self.app)))
            # All are asked to end before each of them is waited for.
            stack.callback(lambda: [process.terminate() for process in started])
            yield

    def rows(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _client(self, number: int, port: int, app: str) -> Sequence[str]:
        return [str(self.bin / "flower-client"), "--server", f"127.0.0.1:{port}", "--app", app,
                "--ca", str(self.folder / "tls" / "ca.crt"), "--key", str(self.folder / f"key-{number}"),
                "--node-config", self._config(number)]  # fmt: skip

    def _supernode(self, number: int, port: int, _: str) -> Sequence[str]:
        return [str(Path(sys.executable).with_name("flower-supernode")), "--superlink", f"127.0.0.1:{port}",
                "--root-certificates", str(self.folder / "tls" / "ca.crt"), "--port", str(free_port()),
                "--auth-supernode-private-key", str(self.folder / f"key-{number}"),
                "--node-config", self._config(number)]  # fmt: skip

    def _config(self, number: int) -> str:
        return f"partition-id={number} num-partitions={self.nodes}"
