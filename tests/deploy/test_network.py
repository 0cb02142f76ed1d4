"""A fleet on a bad network: one seed, each fault once. `python -m tests.chaos.network` does it for many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.fault_plan import KINDS
from tests.chaos.network import endure

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


def test_a_run_under_every_fault_ends_with_the_predictors_of_what_was_accepted(tmp_path: Path) -> None:
    tally = endure(tmp_path, seed=0, rounds=8 * len(KINDS), faults=len(KINDS))
    assert tally.faults == dict.fromkeys(KINDS, 1)
    assert tally.difference < 1e-5
