"""kill -9 at random instants of a simulation, --resume after each; the end must be that of the unbroken run.

    python -m tests.chaos.kill --times 50 --seed 0

Kills fall into the start of the command, between rounds, into rounds and into the writing of checkpoints.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.processes import Command
from tests.conftest import read_metrics

# Both chains win rounds; cohorts are drawn; three runs share one pass, so three metrics files must agree.
EXPERIMENT = {
    "strategy": ["fedavg", "mm-psgd", "mc-psgd"], "data": "digits", "blocks": 3, "clients": 12, "labels-per-block": 4,
    "client-skew": 0.5, "model": "linear", "cycles": 3, "local-iterations": 3, "batch-size": 4, "lr-mixed": 0.02,
    "lr-separate": 0.1, "participation": 0.5, "nodes": 3, "eval-every": 7, "seed": 5,
}  # fmt: skip
ENDING_SECONDS = 30.0
FINISH_SECONDS = 280.0
# One kill in this many comes before the first round of its session.
EARLY = 8


@dataclass
class Tally:
    """What the kills met."""

    kills: int = 0
    before_a_round: int = 0
    rounds_again: int = 0
    partial_files: int = 0
    leftovers: list[str] = field(default_factory=list)


def kill_and_compare(folder: Path, *, times: int, rounds_per_block: int, seed: int) -> Tally:
    """Run unbroken and broken; raises AssertionError where anything differs but the times."""
    (folder / "t").mkdir()
    content = {**EXPERIMENT, "rounds-per-block": rounds_per_block}
    (folder / "run.yaml").write_text(json.dumps(content))
    total = content["cycles"] * content["blocks"] * rounds_per_block
    assert _start(folder, "unbroken").wait(FINISH_SECONDS) == 0, _log(folder)
    rng = random.Random(seed)
    tally = Tally()
    targets = sorted(rng.randrange(total) for _ in range(times))
    for target in targets:
        _session(folder, target, rng, tally)
    every = rng.randint(1, 5)
    assert _start(folder, "broken", every).wait(FINISH_SECONDS) == 0, _log(folder)
    compare(folder / "unbroken", folder / "broken")
    assert _scratch(folder) == [], "temporary folders were left"
    return tally


def compare(unbroken: Path, broken: Path) -> None:
    """Hold all runs of two experiments against each other: predictors bit for bit, metrics but for the seconds."""
    for run in sorted(path.parent for path in unbroken.glob("*/config.yaml")):
        other = broken / run.name
        for path in sorted((run / "predictors").iterdir()):
            assert path.read_bytes() == (other / "predictors" / path.name).read_bytes(), f"{run.name}: {path.name}"
        assert read_metrics(run) == read_metrics(other), f"{run.name}: metrics differ"
        names = {path.name for path in other.rglob("*") if path.is_file()}
        assert not any("partial" in name for name in names), f"{run.name}: {names}"
        assert len(list((other / "checkpoint").glob("*"))) <= 4


def _session(folder: Path, target: int, rng: random.Random, tally: Tally) -> None:
    """Resume, kill when round ``target`` is in the metrics and a random moment more has passed."""
    metrics = folder / "broken" / "mc-psgd" / "metrics.jsonl"
    command = _start(folder, "broken", rng.randint(1, 5))
    if rng.randrange(EARLY) == 0:
        tally.before_a_round += 1
        time.sleep(rng.random() * 8.0)
    else:
        deadline = time.monotonic() + FINISH_SECONDS
        while _lines(metrics) <= target and command.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
    assert command.process.poll() is None, f"the run ended before it was killed at round {target}: {_log(folder)}"
    command.kill()
    tally.kills += 1
    left = command.left_after(ENDING_SECONDS)
    assert not left, f"processes outlived the driver: {left}"
    assert len(_scratch(folder)) <= 1, f"temporary folders pile up: {_scratch(folder)}"
    tally.partial_files += sum(1 for _ in (folder / "broken").rglob("*partial*"))
    saved = max((int(path.stem) for path in (metrics.parent / "checkpoint").glob("*.json")), default=0)
    tally.rounds_again += max(0, _lines(metrics) - saved)


def _start(folder: Path, output: str, every: int = 1) -> Command:
    arguments: list[str | Path] = ["simulation.cli", "run", "run.yaml", "--resume"]
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
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        tally = kill_and_compare(
            Path(folder), times=options.times, rounds_per_block=options.rounds_per_block, seed=options.seed
        )
    print(
        f"{tally.kills} kills in {9 * options.rounds_per_block} rounds, {tally.before_a_round} of them during a start; "
        f"{tally.rounds_again} rounds run again, {tally.partial_files} half-written files seen on the way\n"
        f"3 runs: predictors bit-identical, metrics identical but for times; no process and no temporary folder left "
        f"({time.monotonic() - start:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
