"""The driver of a simulation is killed and resumed; `python -m tests.chaos.kill` does it fifty times."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.chaos.kill import kill_and_compare


@pytest.mark.timeout(1800)
def test_three_kills_change_neither_predictors_nor_metrics_and_leave_nothing_behind() -> None:
    # Ray's sockets do not fit into the long paths of pytest's own folders.
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        tally = kill_and_compare(Path(folder), victims=("driver", "start", "driver"), rounds_per_block=4, seed=1)
    assert tally.kills == {"driver": 2, "start": 1}
