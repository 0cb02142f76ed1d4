"""The stock way: flower-superlink behind our door, with one stock node and one of ours."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import read_predictors
from tests.deploy.lab import ROOT, device, rows, wait_until, write_shards

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
ROUNDS = 2


@contextmanager
def command(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FLWR_HOME": str(log.parent / "home")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=log.parent, env=environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_stock_superlink_serves_a_stock_node_and_ours_behind_the_door(tmp_path: Path) -> None:
    write_shards(tmp_path)
    port, output = free_port(), tmp_path / "run"
    server_arguments = [
        "-m", "server.cli", "--runtime", "stock", "--insecure", "--port", str(port), "--state-dir", str(tmp_path),
        "--output", str(output), "--data", str(tmp_path / "shards" / "all"), "--nodes", "2", "--cycles", "1",
        "--rounds-per-block", "1", "--engine", "loop",
    ]  # fmt: skip

    def client(number: int, runtime: str) -> list[str]:
        data = str(tmp_path / "shards" / device(number))
        return ["-m", "client.cli", "--insecure", "--server", f"127.0.0.1:{port}", "--data", data, "--runtime", runtime]

    with command(tmp_path / "server.log", *server_arguments) as server:
        said = tmp_path / "server.log"
        wait_until(lambda: "listening on" in said.read_text() or server.poll() is not None, 240, "the door")
        assert server.poll() is None, said.read_text()
        assert httpx.post(f"http://127.0.0.1:{port}/v1/control/list-runs").status_code == 404
        with (
            command(tmp_path / "stock.log", *client(0, "stock")),
            command(tmp_path / "quick.log", *client(1, "quick")),
        ):
            assert server.wait(400) == 0, said.read_text()[-3000:]
    assert [row["server-round"] for row in rows(output)] == [1, 2]
    assert all(row["clients-answered"] == 2 for row in rows(output))
    assert len(read_predictors(output)) == ROUNDS
