"""kill -9 at random instants of a simulation, --resume after each; the end must be that of the unbroken run.

    python -m tests.chaos.kill --times 50 --seed 0

Kills fall into the start of the command, between rounds, into rounds and into the writing of checkpoints.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import read_metrics
from tests.processes import Command, kill

# Both chains win rounds; cohorts are drawn; three runs share one pass, so three metrics files must agree.
EXPERIMENT = {
    "strategy": ["fedavg", "mm-psgd", "mc-psgd"], "data": "digits", "blocks": 3, "clients": 12, "labels-per-block": 4,
    "client-skew": 0.5, "model": "linear", "cycles": 3, "local-iterations": 3, "batch-size": 4, "lr-mixed": 0.02,
    "lr-separate": 0.1, "participation": 0.5, "min-replies": 1.0, "nodes": 3, "eval-every": 7, "seed": 5,
}  # fmt: skip
# Ray's agents look for their parent once they have started, which on a busy machine takes a while.
ENDING_SECONDS = 120.0
FINISH_SECONDS = 600.0
# About what the command takes to its first round on an idle machine.
START_SECONDS = 8.0


@dataclass
class Tally:
    """What the kills met."""

    kills: Counter[str] = field(default_factory=Counter)
    rounds_again: int = 0
    partial_files: int = 0
    longest_end: float = 0.0


def kill_and_compare(folder: Path, *, victims: Sequence[str], rounds_per_block: int, seed: int) -> Tally:
    """Run unbroken and broken; raises AssertionError where anything differs but the times.

    victims: whom each kill hits, "driver" (the command itself), "start" (the same, before its first round) or "raylet"
    (with all workers).
    """
    (folder / "t").mkdir()
    content = {**EXPERIMENT, "rounds-per-block": rounds_per_block}
    (folder / "run.yaml").write_text(json.dumps(content))
    total = content["cycles"] * content["blocks"] * rounds_per_block
    assert _start(folder, "unbroken").wait(FINISH_SECONDS) == 0, _log(folder)
    rng = random.Random(seed)
    tally = Tally()
    targets = sorted(rng.randrange(total - 1) for _ in victims)
    for victim, target in zip(victims, targets, strict=True):
        _session(folder, victim, target, rng, tally)
    every = rng.randint(1, 5)
    assert _start(folder, "broken", every).wait(FINISH_SECONDS) == 0, _log(folder)
    compare(folder / "unbroken", folder / "broken")
    assert _scratch(folder) == [], "temporary folders were left"
    return tally


def compare(unbroken: Path, broken: Path) -> None:
    """Hold all runs of two experiments against each other: predictors bit for bit, metrics but for the seconds."""
    for run in sorted(path.parent for path in unbroken.glob("*/config.yaml")):
        other = broken / run.name
        for row, again in zip(read_metrics(run), read_metrics(other), strict=True):
            assert row == again, f"{run.name}: {row} became {again}"
        for path in sorted((run / "predictors").glob("*.safetensors")):
            assert path.read_bytes() == (other / "predictors" / path.name).read_bytes(), f"{run.name}: {path.name}"
        names = {path.name for path in other.rglob("*") if path.is_file()}
        assert not any("partial" in name for name in names), f"{run.name}: {names}"
        assert len(list((other / "checkpoint").glob("*"))) <= 4


def _session(folder: Path, victim: str, target: int, rng: random.Random, tally: Tally) -> None:
    """Resume, kill when round ``target`` is in the metrics and a random moment more has passed."""
    metrics = folder / "broken" / "mc-psgd" / "metrics.jsonl"
    command = _start(folder, "broken", rng.randint(1, 5))
    if victim == "start":
        time.sleep(rng.random() * START_SECONDS)
    else:
        deadline = time.monotonic() + FINISH_SECONDS
        while _lines(metrics) <= target and command.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
    assert command.process.poll() is None, f"the run ended before it was killed at round {target}: {_log(folder)}"
    if victim == "raylet":
        # Workers outlive their raylet for seconds, in which a short run would end well. The driver must not see one
        # of them dead and ask the other: a repeated round draws another cohort, and would rightly end otherwise.
        command.process.send_signal(signal.SIGSTOP)
        for pid, line in command.family().items():
            if "/raylet/raylet" in line or line.startswith("ray::Worker"):
                kill(pid, line)
        command.process.send_signal(signal.SIGCONT)
        assert command.wait(FINISH_SECONDS) == 1, _log(folder)
    else:
        command.kill()
    tally.kills[victim] += 1
    killed = time.monotonic()
    left = command.left_after(ENDING_SECONDS)
    assert not left, f"processes outlived the driver: {left}"
    tally.longest_end = max(tally.longest_end, time.monotonic() - killed)
    assert len(_scratch(folder)) <= 1, f"temporary folders pile up: {_scratch(folder)}"
    tally.partial_files += sum(1 for _ in (folder / "broken").rglob("*partial*"))
    saved = max((int(path.stem) for path in (metrics.parent / "checkpoint").glob("*.json")), default=0)
    tally.rounds_again += max(0, _lines(metrics) - saved)


def _start(folder: Path, output: str, every: int = 1) -> Command:
    arguments: list[str | Path] = ["perennial.simulation.cli", "run", "run.yaml", "--resume"]
    arguments += ["--set", f"output={output}", "--set", f"checkpoint-every={every}"]
    return Command(arguments, folder, folder / "t")


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _scratch(folder: Path) -> list[str]:
    return [path.name for path in (folder / "t").glob("perennial-*")]


def _log(folder: Path) -> str:
    return (folder / "commands.log").read_text(errors="replace")[-2000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="kills (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the instants (default: 0)")
    parser.add_argument("--rounds-per-block", type=int, default=30, help="the run has 9 times as many (default: 30)")
    options = parser.parse_args()
    start = time.monotonic()
    victims = random.Random(options.seed).choices(("driver", "start", "raylet"), (8, 1, 1), k=options.times)
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        tally = kill_and_compare(
            Path(folder), victims=victims, rounds_per_block=options.rounds_per_block, seed=options.seed
        )
    print(
        f"{tally.kills.total()} kills in {9 * options.rounds_per_block} rounds: "
        f"{tally.kills['driver']} of the driver at work, {tally.kills['start']} at its start, "
        f"{tally.kills['raylet']} of the raylet; "
        f"{tally.rounds_again} rounds run again, {tally.partial_files} half-written files on the way\n"
        f"3 runs: predictors bit-identical, metrics identical but for times; no temporary folder left, and no process "
        f"{tally.longest_end:.0f} s after a kill ({time.monotonic() - start:.0f} s in all)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
