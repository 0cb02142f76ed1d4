"""Unchanged flower-supernodes and a stranger's app, with TLS and keys, in either runtime of flower-server."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.app_fleet import AppFleet
from perennial.common.command import flower
from tests.apps import numpy_app
from tests.deploy.lab import ROOT
from tests.library_reference import Run, mc_psgd_exponential
from tests.server.strategies.quickstart import STEPS, load_data

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
NODES = 3
# By the clock of this machine, whatever else it does.
SECONDS = 600


def made(folder: Path, nodes: int) -> AppFleet:
    variables = {**flower.environment(folder / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    fleet = AppFleet(numpy_app.write(folder / "app"), folder, nodes, Path(sys.executable).parent, variables)
    fleet.prepare()
    return fleet


@pytest.fixture
def fleet(tmp_path: Path) -> AppFleet:
    return made(tmp_path, NODES)


@pytest.mark.parametrize(
    ("runtime", "one_message"),
    [("quick", False), ("quick", True), ("stock", False)],
    ids=["quick", "together", "stock"],
)
def test_unchanged_supernodes_complete_rounds_of_mc_psgd(fleet: AppFleet, runtime: str, one_message: bool) -> None:
    keys = numpy_app.keys(nodes=NODES, cycles=1, **{"rounds-per-block": 1, "one-message": one_message})
    way = (
        ["--stock-nodes"]
        if runtime == "quick"
        else ["--runtime", "stock", "--tls-ca", str(fleet.folder / "tls" / "ca.crt")]
    )
    with fleet.served(keys, *way) as (server, port), fleet.connected("stock", port, numpy_app.APP):
        assert server.wait(SECONDS) == 0, (fleet.folder / "server.log").read_text()[-3000:]
    rows = fleet.rows()
    assert [(row["block-name"], row["clients-answered"]) for row in rows] == [("day", NODES), ("night", NODES)]
    data = [[load_data(node, block) for node in range(NODES)] for block in range(2)]
    setting = Run(data, [0, 1], [list(range(NODES))] * 2, STEPS, lr=numpy_app.LR, lr_separate=numpy_app.LR_SEPARATE)
    expected, chosen = mc_psgd_exponential(setting, np.array([0.1, 0.2, 0.3, 0.0]), 0.5)
    assert [row["chosen"] for row in rows] == chosen
    for block in range(2):
        found = load_file(fleet.run / "predictors" / f"block-{block}.safetensors")
        assert np.abs(np.append(found["fc.weight"], found["fc.bias"]) - expected[block]).max() < 1e-5


def test_clients_of_ours_run_the_same_app(fleet: AppFleet) -> None:
    keys = numpy_app.keys(nodes=NODES)
    with fleet.served(keys) as (server, port), fleet.connected("quick", port, numpy_app.APP):
        assert server.wait(SECONDS) == 0, (fleet.folder / "server.log").read_text()[-3000:]
    assert [row["clients-answered"] for row in fleet.rows()] == [NODES] * 8


def test_an_unchanged_supernode_and_fifty_clients_of_ours_share_a_run(tmp_path: Path) -> None:
    nodes = 51
    fleet = made(tmp_path, nodes)
    keys = numpy_app.keys(nodes=nodes, cycles=1, **{"rounds-per-block": 1, "node-timeout": SECONDS})
    with fleet.served(keys, "--stock-nodes") as (server, port), fleet.connected("mixed", port, numpy_app.APP):
        assert server.wait(SECONDS) == 0, (fleet.folder / "server.log").read_text()[-3000:]
    assert [row["clients-answered"] for row in fleet.rows()] == [nodes] * 2
