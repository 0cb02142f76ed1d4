"""A real run with its page, and Chromium without a screen to look at it. No other machine is asked for anything."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import COMMAND, environment

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
EXPERIMENT = """
title: Four days in fast motion
strategy: mc-psgd
data: digits
blocks: 2
labels-per-block: 5
client-skew: 0.5
clock: "day: 08:00-20:00, night: 20:00-08:00"
timezone: Europe/Berlin
clock-start: "2026-03-10T12:00"
clock-step: 15
cycles: 4
clients: 12
nodes: 2
model: linear
batch-size: 8
local-iterations: 40
lr-mixed: 0.02
lr-separate: 0.02
eval-every: 4
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program, "there is no chromium; make test-page says what to do"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, headless=True, args=FLAGS)
        yield found
        found.close()


class RealRun:
    """flower-simulation with a page, as a user starts it."""

    def __init__(self, folder: Path) -> None:
        (folder / "days.yaml").write_text(EXPERIMENT)
        self.folder, self._said = folder / "runs" / "days", (folder / "said").open("w")
        self.process = subprocess.Popen(
            [COMMAND, "run", "days.yaml", "--page", "0"],
            cwd=folder,
            env=environment(),
            stdout=self._said,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        self.address = next(line for line in lines if line.startswith("page: ")).removeprefix("page: ").strip()

    def end(self) -> tuple[int, str]:
        """Wait for the run's end; return its exit code and what else it said on standard error."""
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self._said.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RealRun]:
    found = RealRun(tmp_path)
    yield found
    found.close()
