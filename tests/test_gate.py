"""`make test` ends as the tests did, and keeps what they printed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def gate(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run the recipe of `make test` with a script in pytest's place; -o: what comes before it is done."""
    shutil.copy(ROOT / "Makefile", folder)
    pytest_here = folder / ".venv" / "bin" / "pytest"
    pytest_here.parent.mkdir(parents=True, exist_ok=True)
    pytest_here.write_text(f"#!/bin/sh\n{script}\n")
    pytest_here.chmod(0o755)
    return subprocess.run(["make", "test", "-o", "lint"], cwd=folder, capture_output=True, text=True, check=False)


def kept(folder: Path) -> list[Path]:
    return list((folder / "build").glob("gate-failed-*.log"))


def test_green_tests_leave_their_log_and_no_other(tmp_path: Path) -> None:
    done = gate(tmp_path, "echo all well")
    assert done.returncode == 0
    assert "all well" in done.stdout
    assert (tmp_path / "build" / "gate.log").read_text() == "all well\n"
    assert kept(tmp_path) == []


def test_failed_tests_fail_the_gate_and_their_log_outlives_the_next_run(tmp_path: Path) -> None:
    done = gate(tmp_path, "echo one failed; echo and why >&2; exit 3")
    assert done.returncode != 0
    assert "Error 3" in done.stderr
    (log,) = kept(tmp_path)
    assert f"build/{log.name}" in done.stderr
    assert gate(tmp_path, "echo all well").returncode == 0
    assert kept(tmp_path) == [log]
    assert log.read_text() == "one failed\nand why\n"


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_tests_that_were_killed_fail_the_gate(tmp_path: Path, signal: str) -> None:
    assert gate(tmp_path, "echo all well").returncode == 0
    assert gate(tmp_path, f"kill -{signal} $$").returncode != 0
