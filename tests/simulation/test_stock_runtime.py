"""The same app on Flower's own simulation runtime: `flwr run` gives the predictors that our grid gives."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from perennial.common.command.flower import command, end, free_port
from perennial.server.run.folder import RunFolder
from tests.conftest import Simulate, make_data, read_metrics, read_predictors, write_folder
from tests.processes import descendants, environment, kill, wait_until

ROOT = Path(__file__).resolve().parents[2]
# Flower's own processes start slowly, and each round waits for polls.
pytestmark = pytest.mark.timeout(1200)
KEYS: dict[str, Any] = {
    "model": "linear", "lr-mixed": 0.3, "lr-separate": 0.25, "cycles": 1, "rounds-per-block": 3, "batch-size": 0,
    "local-iterations": 2, "nodes": 2, "strategy": "mc-psgd",
}  # fmt: skip


def is_healthy(address: str) -> bool:
    try:
        with urlopen(address, timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A folder for Ray alone: in the usual one it would join a cluster that anybody started on this machine."""
    # Ray's sockets do not fit into the long paths of pytest's own folders.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        yield folder


@pytest.fixture
def stock_environment(tmp_path: Path, ray_folder: str) -> Iterator[dict[str, str]]:
    """A local SuperLink in simulation mode, as `flwr run` would start it; its processes end with the test."""
    # Ray's workers import from the working directory before the bundle: a project there may have our folders' names.
    for name in ("client", "server", "common", "simulation"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("raise AssertionError('the project is not the app')")
    port = str(free_port())
    settings = {"FLWR_HOME": str(tmp_path / "flwr"), "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port}
    settings["RAY_TMPDIR"] = ray_folder
    env = environment(**settings)
    line = [command("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    line += ["--host", "127.0.0.1", "--port", port, "--database", str(tmp_path / "state.db")]
    options: dict[str, Any] = {"cwd": tmp_path / "project", "env": env, "start_new_session": True}
    options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, **options) as process:
        try:
            # `flwr run` starts one of its own, which nobody would stop, where it finds none.
            health = f"http://127.0.0.1:{port}/health"
            wait_until(lambda: process.poll() is not None or is_healthy(health), 300, health)
            assert process.poll() is None
            yield env
        finally:
            below = descendants(process.pid)
            end(process, 15)
            for pid, started_as in below.items():
                kill(pid, started_as)


def test_flwr_run_on_the_stock_runtime_gives_the_same_predictors(
    simulate: Simulate, stock_environment: dict[str, str], tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data", make_data(2, 4))
    keys = {**KEYS, "data": str(data)}
    ours = simulate("ours", **keys)[""]
    overrides = " ".join(
        f"{key}={json.dumps(value)}" for key, value in {**keys, "output": str(tmp_path / "stock")}.items()
    )
    resources = "num-supernodes=2 client-resources-num-cpus=1"
    done = subprocess.run(
        [command("flwr"), "run", str(ROOT), "--stream", "-c", overrides, "--federation-config", resources],
        cwd=tmp_path / "project",
        env=stock_environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    stock = tmp_path / "stock"
    assert RunFolder(stock).is_complete(), done.stdout[-3000:] + done.stderr[-3000:]
    for one, other in zip(read_predictors(ours), read_predictors(stock), strict=True):
        assert max(np.abs(one[name] - other[name]).max() for name in one) < 1e-5
    assert [row["chosen"] for row in read_metrics(ours)] == [row["chosen"] for row in read_metrics(stock)]
