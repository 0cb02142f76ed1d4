"""The experiments on real data, a few rounds of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conftest import Simulate, read_metrics

EXPERIMENTS = Path(__file__).parents[2] / "simulation" / "experiments"


@pytest.mark.parametrize("name", ["chicago", "flights"])
def test_a_cycle_of_real_data_trains_and_is_judged_in_every_block(simulate: Simulate, name: str) -> None:
    keys = yaml.safe_load((EXPERIMENTS / f"{name}.yaml").read_text())
    runs = simulate(**{**keys, "cycles": 1, "rounds-per-block": 2, "eval-every": 2})
    blocks = {"chicago": 2, "flights": 4}[name]
    for run in runs.values():
        rows = read_metrics(run)
        assert [row["block"] for row in rows] == [block for block in range(blocks) for _ in range(2)]
        assert len(rows[-1]["accuracy"]) == blocks
        assert 0.1 < rows[-1]["mean-accuracy"] < 0.8
