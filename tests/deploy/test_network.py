"""A fleet on a bad network: one seed with ten faults. `python -m tests.chaos.network` does it for many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.network import endure

pytestmark = [pytest.mark.root, pytest.mark.timeout(1800)]


def test_a_run_under_ten_faults_ends_with_the_predictors_of_what_was_accepted(tmp_path: Path) -> None:
    tally = endure(tmp_path, seed=0, rounds=120, faults=10)
    assert tally.faults.total() == 10
    assert tally.difference < 1e-5
