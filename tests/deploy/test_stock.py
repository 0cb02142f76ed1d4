"""The stock way: flower-superlink behind our door, with one stock node and one of ours; or one that others started."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from benchmarks.processes import running, wait_until
from perennial.common.command import flower
from tests.conftest import read_predictors
from tests.deploy.lab import ROOT, device, rows, write_shards

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
ROUNDS = 2


def command(log: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    environment = {**flower.environment(log.parent / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return running([sys.executable, *arguments], log, environment)


def test_a_stock_superlink_serves_a_stock_node_and_ours_behind_the_door(tmp_path: Path) -> None:
    write_shards(tmp_path)
    port, said = flower.free_port(), tmp_path / "server.log"
    with command(said, *server_arguments(tmp_path), "--runtime", "stock", "--port", str(port)) as server:
        wait_until(lambda: "listening on" in said.read_text() or server.poll() is not None, 240, "the door")
        assert server.poll() is None, said.read_text()
        assert httpx.post(f"http://127.0.0.1:{port}/v1/control/list-runs").status_code == 404
        with (
            command(tmp_path / "stock.log", *client_arguments(tmp_path, 0, port), "--runtime", "stock"),
            command(tmp_path / "quick.log", *client_arguments(tmp_path, 1, port), "--runtime", "quick"),
        ):
            assert server.wait(400) == 0, said.read_text()[-3000:]
    check(tmp_path)


def test_a_run_is_submitted_to_a_superlink_that_already_runs(tmp_path: Path) -> None:
    write_shards(tmp_path)
    port, said = flower.free_port(), tmp_path / "server.log"
    link = (flower.command("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port))
    with (
        command(tmp_path / "link.log", *link),
        command(tmp_path / "client-0.log", *client_arguments(tmp_path, 0, port), "--runtime", "stock"),
        command(tmp_path / "client-1.log", *client_arguments(tmp_path, 1, port), "--runtime", "stock"),
    ):
        wait_until(lambda: "running on" in (tmp_path / "link.log").read_text(), 240, "the SuperLink")
        with command(said, *server_arguments(tmp_path), "--attach", f"127.0.0.1:{port}") as server:
            assert server.wait(400) == 0, said.read_text()[-3000:]
    check(tmp_path)


def server_arguments(folder: Path) -> list[str]:
    return [
        "-m", "perennial.server.cli", "--insecure", "--state-dir", str(folder), "--output", str(folder / "run"),
        "--data", str(folder / "shards" / "all"), "--nodes", "2", "--cycles", "1", "--rounds-per-block", "1",
        "--engine", "loop",
    ]  # fmt: skip


def client_arguments(folder: Path, number: int, port: int) -> list[str]:
    data = str(folder / "shards" / device(number))
    return ["-m", "perennial.client.cli", "--insecure", "--server", f"127.0.0.1:{port}", "--data", data]


def check(folder: Path) -> None:
    """Both rounds were done by both clients, and every block has a predictor."""
    done = rows(folder / "run")
    assert [row["server-round"] for row in done] == [1, 2]
    assert all(row["clients-answered"] == 2 for row in done)
    assert len(read_predictors(folder / "run")) == ROUNDS
