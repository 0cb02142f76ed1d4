"""A cluster of two raylets: one dies in mid-run, another one joins; nothing is lost, and Ray says nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What `python -m tests.chaos.machines` prints; it fails if a bit of any predictor is another."""
    command = [sys.executable, "-m", "tests.chaos.machines", "--machines", "2", "--times", "1"]
    command += ["--cpus", "1", "--rounds", "60"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout.splitlines()


def test_a_run_that_loses_a_machine_and_gets_one_ends_as_an_unbroken_one(said: list[str]) -> None:
    assert "1 machines died and 1 joined in 60 rounds on 2 machines" in said[-1]
    assert "predictors bit-identical" in said[-1]


def test_nodes_move_to_what_is_left_and_to_a_machine_that_joins(said: list[str]) -> None:
    first, *_, last = [set(line.split(": ")[1].split()) for line in said if line.startswith("rounds ")]
    assert {"machine-0", "machine-1"} <= {word.strip(",") for word in first}
    assert {"machine-0", "machine-2"} <= {word.strip(",") for word in last}


def test_workers_share_a_gpu_that_they_were_given_and_one_that_was_given_none_sees_none(said: list[str]) -> None:
    assert "2 workers that were given 0.5 GPUs each see: 0" in said
    assert "1 workers that were given 0 GPUs each see: none" in said


def test_a_user_sees_one_line_for_each_change_and_nothing_of_rays(said: list[str]) -> None:
    known = ("after round ", "INFO: nodes live on ", "rounds ", "again: ", "1 machines died", "2 workers", "1 workers")
    assert [line for line in said if not line.startswith(known)] == []
