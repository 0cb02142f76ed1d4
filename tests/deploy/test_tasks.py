"""Tasks and kinds of layers on real devices: server and clients as commands, over loopback."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.processes import running
from perennial.common.command import flower
from perennial.common.command.config import RunConfig
from perennial.common.data import shards
from perennial.common.data.datasets import Shards
from perennial.common.data.row_shards import RowShards
from tests import documented, layers
from tests.conftest import read_predictors
from tests.deploy.lab import ROOT, rows

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


def cut_of(kind: str) -> Shards:
    rng, places = np.random.default_rng(0), np.arange(96)
    if kind in ("Rides", "Melodies"):
        made: Shards = vars(documented)[kind]().open(RunConfig())
        return made
    x = rng.standard_normal((96, 3), np.float32) if kind in ("binary", "regression") else layers.inputs(kind, rng, 96)
    y = x.sum(1) if kind == "regression" else places % 2 if kind == "binary" else places % layers.CLASSES
    return RowShards.of((x,), y, client=places % 4, block=places // 48, test=places // 4 % 4 == 0)


CASES = {
    "binary": {"task": "binary"},
    "regression": {"task": "regression"},
    "Rides": {"task": "tests.documented:rides"},
    "Melodies": {"task": "tests.documented:melodies"},
    **{kind: {"model": f"tests.layers:{kind}"} for kind in layers.KINDS},
}


def command(log: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    environment = {**flower.environment(log.parent / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return running([sys.executable, *arguments], log, environment)


@pytest.mark.parametrize("kind", CASES)
def test_a_fleet_trains_it(tmp_path: Path, kind: str) -> None:
    cut = cut_of(kind)
    shards.write(tmp_path / "server", cut, [])
    for node in (0, 1):
        shards.write(tmp_path / f"node-{node}", cut, cut.clients[node::2], with_test=False)
    port, said = flower.free_port(), tmp_path / "server.log"
    keys = [part for key, value in CASES[kind].items() for part in (f"--{key}", value)]
    server = [
        "-m", "perennial.server.cli", "--insecure", "--port", str(port), "--state-dir", str(tmp_path),
        "--output", str(tmp_path / "run"), "--data", str(tmp_path / "server"), "--nodes", "2", "--cycles", "1",
        "--rounds-per-block", "1", "--batch-size", "4", *keys,
    ]  # fmt: skip
    client = ["-m", "perennial.client.cli", "--insecure", "--server", f"127.0.0.1:{port}", "--data"]
    with (
        command(said, *server) as served,
        command(tmp_path / "0.log", *client, str(tmp_path / "node-0")),
        command(tmp_path / "1.log", *client, str(tmp_path / "node-1")),
    ):
        assert served.wait(900) == 0, said.read_text()[-3000:]
    done = rows(tmp_path / "run")
    assert [row["clients-answered"] for row in done] == [len(cut.clients)] * 2
    assert len(read_predictors(tmp_path / "run")) == 2
    assert not any("failed" in (tmp_path / f"{node}.log").read_text() for node in (0, 1))
