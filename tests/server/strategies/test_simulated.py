"""A quickstart's app in Flower's own simulation, in a folder with packages client, server and common of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.library_reference import Run, mc_psgd_exponential, mm_psgd_mean
from tests.server.strategies.quickstart import STEPS, load_data

ROOT = Path(__file__).resolve().parents[3]
INITIAL = np.array([0.1, 0.2, 0.3, 0.0])
DATA = [[load_data(node, block) for node in range(6)] for block in range(2)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("app")
    for name in ("client", "server", "common"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('the app has packages of its own')\n")
    settings = {"PYTHONPATH": str(ROOT), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "tests.server.strategies.simulated"]
    run = subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def setting(one: dict[str, Any]) -> Run:
    return Run(DATA, one["blocks"], one["cohorts"], STEPS, lr=0.02, lr_separate=0.05)


def agrees(one: dict[str, Any], expected: dict[int, Any]) -> None:
    for block, name in enumerate(("day", "night")):
        assert np.abs(np.array(one["predictors"][name]) - expected[block]).max() < 1e-5


def test_mm_psgd_agrees_with_numpy_by_the_recorded_cohorts(found: dict[str, Any]) -> None:
    assert [len(cohort) for cohort in found["mm"]["cohorts"]] == [3] * 8
    agrees(found["mm"], mm_psgd_mean(setting(found["mm"]), INITIAL))


@pytest.mark.parametrize("way", ["mc", "one message"])
def test_mc_psgd_agrees_with_numpy_by_the_recorded_cohorts(found: dict[str, Any], way: str) -> None:
    assert [len(cohort) for cohort in found[way]["cohorts"]] == [3 if way == "mc" else 6] * 8
    expected, chosen = mc_psgd_exponential(setting(found[way]), INITIAL, 0.5)
    assert found[way]["chosen"] == chosen
    agrees(found[way], expected)


def test_one_message_votes_only_where_the_block_changes_and_at_the_end(found: dict[str, Any]) -> None:
    assert found["exchanges"] == ["train", "train", "evaluate"] * 4


def test_what_an_app_raised_is_said_in_one_line_without_the_traceback(found: dict[str, Any]) -> None:
    assert found["ill"] == (
        "round 1, block day: the mixed chain got no usable reply (ValueError: could not convert string to float: "
        "'much'), 1 times in a row; are the clients well?"
    )


def test_replies_in_their_order_give_fresh_strategies_the_same_chains_to_the_bit(found: dict[str, Any]) -> None:
    assert found["replayed"] == {"mixed": True, "0": True, "1": True}
