"""A run that is short of everything: it goes on, or ends with one line, and --resume completes it with the same bytes.

    python -m tests.chaos.shortage

64 open files, all of them taken for a while; 300 MB of memory above the start; a disk that fills and is freed (a small
tmpfs if this may mount one, else a bound on the size of files); a temporary folder that is removed, under Ray; a clock
that is stepped by two hours both ways. Each scene is a process of its own, the one under Ray the real command.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from flwr.app import Message

from benchmarks.processes import commit
from perennial import MCPSGD, ClockSchedule
from perennial.common.command import console, places
from perennial.common.cycle.steady import SteadyClock
from perennial.example import example_arrays, example_grid
from tests.chaos import damage
from tests.conftest import make_data, write_folder
from tests.processes import COMMAND, environment, run_command, wait_until

FILES, MEMORY, TMPFS = 64, 300 * 2**20, "1m"
# A scene's trouble begins with this order; a run has eight and its votes.
TROUBLED_ORDER = 4
# Of the run under Ray: long enough to be in the middle when its first rounds are seen.
ROUNDS_UNDER_RAY = 60


@dataclass(frozen=True)
class Outcome:
    """What came of a scene: the exit code and the last line of the run in trouble, and whether the end is the same."""

    code: int
    said: str
    same: bool

    @property
    def is_good(self) -> bool:
        return self.same and (self.code == 0 or (self.code in (1, 2) and self.said.startswith("flower-simulation: ")))


class TroubledGrid(damage.InProcessGrid):
    """Calls ``trouble`` once, in the middle of the run."""

    def __init__(self, trouble: Callable[[], None]) -> None:
        super().__init__()
        self._orders, self._trouble = 0, trouble

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self._orders += 1
        if self._orders == TROUBLED_ORDER:
            self._trouble()
        return super().send_and_receive(messages, timeout=timeout)


# --- In the process of a scene ----------------------------------------------------------------------------------------


def take_all_files() -> None:
    """Take every file that may still be open, as idle connections do, and let go of them after a while."""
    taken = []
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    threading.Timer(1.0, lambda: [os.close(one) for one in taken]).start()


def calm() -> Callable[[], None]:
    return lambda: None


def short_of_files() -> Callable[[], None]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    return take_all_files


def short_of_memory() -> Callable[[], None]:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    return calm()


def full_disk(folder: Path) -> Callable[[], None]:
    """The disk is filled by somebody else, if it is one of its own; else no file may grow any more."""

    def fill() -> None:
        if not os.path.ismount(folder):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            return
        with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    return fill


def troubled(scene: str, folder: Path) -> int:
    """Run the simulation of ``folder`` in this process as the command does, with the trouble of ``scene``."""
    trouble = {"files": short_of_files, "memory": short_of_memory, "disk": lambda: full_disk(folder), "none": calm}[
        scene
    ]()

    def simulate() -> int:
        with places.writing_to(folder / "run"):
            damage.simulate(folder, resume=True)
        return 0

    with mock.patch.object(damage, "InProcessGrid", return_value=TroubledGrid(trouble)):
        return console.run(simulate, "flower-simulation", interrupted="--resume goes on")


# --- Scenes -----------------------------------------------------------------------------------------------------------


def child(scene: str, folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.shortage", "--scene", scene, "--folder", folder],
        capture_output=True, text=True, timeout=900, check=False, env=environment(PYTHONPATH=os.getcwd()),
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(("INFO", "WARNING"))]
    return done.returncode, "Traceback" if "Traceback" in done.stderr else (said[-1] if said else "")


def play(scene: str, folder: Path) -> Outcome:
    """Play a scene of one process in ``folder``, then go on without trouble, and compare with a run that had none."""
    data = write_folder(folder / "data", make_data(damage.BLOCKS, 4))
    runs = {}
    for name in ("calm", "short"):
        place = runs[name] = folder / name
        place.mkdir()
        mounted = name == "short" and scene == "disk" and _mount(place)
        settings = {**damage.EXPERIMENT, "data": str(data), "output": str(place / "run")}
        (place / "run.yaml").write_text(json.dumps(settings))
        code, said = child(scene if name == "short" else "none", place)
        if mounted:
            (place / "filler").unlink()
    try:
        again = child("none", runs["short"])[0] if code else 0
        same = again == 0 and damage.models_of(runs["short"]) == damage.models_of(runs["calm"])
    finally:
        if mounted:
            subprocess.run(["umount", runs["short"]], check=True)
    return Outcome(code, said, same)


def _mount(place: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS}", "tmpfs", place]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


def temporary_folder_removed(folder: Path) -> Outcome:
    """The real command under Ray, whose temporary folder goes while it trains."""
    data = write_folder(folder / "data", make_data(damage.BLOCKS, 4))
    settings = {**damage.EXPERIMENT, "data": str(data), "rounds-per-block": ROUNDS_UNDER_RAY}
    for name in ("calm", "short"):
        (folder / f"{name}.yaml").write_text(json.dumps({**settings, "output": name}))
    assert run_command("run", "calm.yaml", cwd=folder, timeout=900).returncode == 0
    scratch = folder / "t"
    scratch.mkdir()
    command = subprocess.Popen(
        [COMMAND, "run", "short.yaml"], cwd=folder, env=environment(TMPDIR=str(scratch)), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    metrics = folder / "short" / "mm-psgd" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.stat().st_size > 2000, 600, "the first rounds")
    shutil.rmtree(scratch, ignore_errors=True)
    _, stderr = command.communicate(timeout=900)
    again = (
        run_command("run", "short.yaml", "--resume", cwd=folder, timeout=900).returncode if command.returncode else 0
    )
    lines = [line for line in stderr.splitlines() if line.startswith("flower-simulation")]
    said = "Traceback" if "Traceback" in stderr else (lines[-1] if lines else "")
    return Outcome(
        command.returncode, said, again == 0 and damage.models_of(folder / "short") == damage.models_of(folder / "calm")
    )


def clock_stepped(folder: Path) -> Outcome:
    """A run by the clock, near the end of a block, on a machine whose clock is two hours ahead, then two hours back."""
    ends = []
    for name, steps in (("calm", {}), ("short", {3: timedelta(hours=2), 4: timedelta(hours=-2)})):
        rounds: list[object] = []
        machine = _Machine(lambda rounds=rounds, steps=steps: steps.get(len(rounds), timedelta(0)), rounds)
        clock = SteadyClock(machine.wall, machine.passed)
        schedule = ClockSchedule("early: 00:00-09:30, late: 09:30-24:00", clock=clock)
        random.seed(0)
        strategy, run = MCPSGD(schedule=schedule), folder / name / "run"
        strategy.start(example_grid(4), example_arrays(), 8, run_dir=run, on_round=rounds.append)
        ends.append(damage.models_of(folder / name))
    return Outcome(0, "", ends[0] == ends[1])


@dataclass(frozen=True)
class _Machine:
    """A machine whose rounds take five minutes, and whose clock is wrong by ``wrong``."""

    wrong: Callable[[], timedelta]
    rounds: list[object]

    def passed(self) -> float:
        return 300.0 * len(self.rounds)

    def wall(self) -> datetime:
        return datetime(2026, 3, 2, 9, 0, tzinfo=UTC) + timedelta(seconds=self.passed()) + self.wrong()


SCENES: dict[str, tuple[str, Callable[[Path], Outcome]]] = {
    "files": (f"{FILES} open files, all taken for a second", lambda folder: play("files", folder)),
    "memory": ("300 MB of memory above the start", lambda folder: play("memory", folder)),
    "disk": ("a disk that fills, and is freed", lambda folder: play("disk", folder)),
    "temporary": ("the temporary folder is removed", temporary_folder_removed),
    "clock": ("the clock two hours ahead, then back", clock_stepped),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=SCENES, action="append")
    parser.add_argument("--scene", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scene:
        console.log_to_console(verbose=False)
        return troubled(options.scene, options.folder)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"commit {commit(Path(__file__).parent)}", flush=True)
    failed = 0
    for name in options.only or SCENES:
        text, scene = SCENES[name]
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="s") as folder:
            outcome = scene(Path(folder))
            failed += not outcome.is_good
            end = "went on" if outcome.code == 0 else f"ended with {outcome.code}: {outcome.said.replace(folder, '…')}"
        same = "the same bytes" if outcome.same else "OTHER BYTES"
        print(f"{text:45} {end}; {same} in the end ({time.monotonic() - began:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
