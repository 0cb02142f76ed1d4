"""Flower's own simulation runtime for one test: a SuperLink of its own, which ends with it, and `flwr run`."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from perennial.common.command.flower import command, end, free_port
from tests.processes import descendants, environment, kill, wait_until


@contextmanager
def local_superlink(scratch: Path, cwd: Path) -> Iterator[dict[str, str]]:
    """Start a SuperLink in ``cwd`` as `flwr run` would, and return the environment in which that finds it.

    `flwr run` starts one by itself if it finds none, and nobody would stop that one.
    """
    port = str(free_port())
    # Ray's sockets do not fit into the long paths of pytest's folders; in the usual one it would join a cluster that
    # anybody started on this machine.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray:
        env = environment(
            FLWR_HOME=str(scratch / "flwr"), FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=port, RAY_TMPDIR=ray
        )  # fmt: skip
        line = [command("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
        line += ["--host", "127.0.0.1", "--port", port, "--database", str(scratch / "state.db")]
        options: dict[str, Any] = {"cwd": cwd, "env": env, "start_new_session": True}
        with subprocess.Popen(line, **options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                health = f"http://127.0.0.1:{port}/health"
                wait_until(lambda: process.poll() is not None or _is_healthy(health), 300, health)
                assert process.poll() is None
                yield env
            finally:
                below = descendants(process.pid)
                end(process, 15)
                for pid, started_as in below.items():
                    kill(pid, started_as)


def flwr_run(
    app: Path, overrides: Mapping[str, object], nodes: int, *, cwd: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run an app by `flwr run` to its end."""
    keys = " ".join(f"{key}={json.dumps(value)}" for key, value in overrides.items())
    resources = f"num-supernodes={nodes} client-resources-num-cpus=1"
    line = [command("flwr"), "run", str(app), "--stream", "-c", keys, "--federation-config", resources]
    return subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)


def _is_healthy(address: str) -> bool:
    try:
        with urlopen(address, timeout=5):
            return True
    except OSError:
        return False
