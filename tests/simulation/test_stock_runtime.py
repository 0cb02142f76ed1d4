"""The same app on Flower's own simulation runtime: `flwr run` gives the predictors that our grid gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.server.run.folder import RunFolder
from tests.conftest import Simulate, make_data, read_metrics, read_predictors, write_folder
from tests.local_superlink import flwr_run, local_superlink

ROOT = Path(__file__).resolve().parents[2]
# Flower's own processes start slowly, and each round waits for polls.
pytestmark = pytest.mark.timeout(1200)
KEYS: dict[str, Any] = {
    "model": "linear", "lr-mixed": 0.3, "lr-separate": 0.25, "cycles": 1, "rounds-per-block": 3, "batch-size": 0,
    "local-iterations": 2, "nodes": 2, "strategy": "mc-psgd",
}  # fmt: skip


@pytest.fixture
def stock_environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A local SuperLink in simulation mode, as `flwr run` would start it."""
    # Ray's workers import from the working directory before the bundle: a project there may have our folders' names.
    for name in ("client", "server", "common", "simulation"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("raise AssertionError('the project is not the app')")
    with local_superlink(tmp_path, tmp_path / "project") as env:
        yield env


def test_flwr_run_on_the_stock_runtime_gives_the_same_predictors(
    simulate: Simulate, stock_environment: dict[str, str], tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data", make_data(2, 4))
    keys = {**KEYS, "data": str(data)}
    ours = simulate("ours", **keys)[""]
    overrides = {**keys, "output": str(tmp_path / "stock")}
    done = flwr_run(ROOT, overrides, 2, cwd=tmp_path / "project", env=stock_environment)
    stock = tmp_path / "stock"
    assert RunFolder(stock).is_complete(), done.stdout[-3000:] + done.stderr[-3000:]
    for one, other in zip(read_predictors(ours), read_predictors(stock), strict=True):
        assert max(np.abs(one[name] - other[name]).max() for name in one) < 1e-5
    assert [row["chosen"] for row in read_metrics(ours)] == [row["chosen"] for row in read_metrics(stock)]
