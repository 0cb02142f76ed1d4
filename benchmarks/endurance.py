"""Ten thousand rounds of a tiny model through the whole simulation: memory, open files and temporary files stay flat.

    python -m benchmarks.endurance [--rounds 10000] [--figure docs/results/endurance.png]
    python -m benchmarks.endurance --rounds 2000 --object-store

Models travel inside Ray's calls, or with --object-store through the object store, as those above 4 MB do.
Samples every second what all processes of the run hold: the driver, Ray's workers, raylet (with the object store), GCS
and agents. Prints peaks by round 500 and by the last round; ends with 1 where memory or open files grew by 5 % or more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import command_line, family

BLOCKS, ROUNDS_PER_BLOCK = 2, 50
EARLY_ROUND = 500
MOST_GROWTH = 0.05
SECONDS_BETWEEN = 1.0
SETTING = {
    "strategy": ["fedavg", "mm-psgd", "mc-psgd"], "data": "digits", "blocks": BLOCKS, "labels-per-block": 5,
    "clients": 10, "client-skew": 0.5, "model": "linear", "rounds-per-block": ROUNDS_PER_BLOCK, "local-iterations": 1,
    "batch-size": 2, "participation": 0.5, "eval-every": 50,
}  # fmt: skip
ROLES = ("driver", "workers", "raylet", "gcs", "agents")


@dataclass(frozen=True)
class Sample:
    """What the run held at one moment. rss: bytes by role."""

    server_round: int
    rss: dict[str, int]
    files: int
    temporary: int

    @property
    def total(self) -> int:
        return sum(self.rss.values())


def measure(rounds: int, folder: Path, extra: dict[str, str]) -> list[Sample]:
    """Run the simulation and return a sample a second until its last round is done."""
    scratch = folder / "t"
    scratch.mkdir()
    (folder / "run.yaml").write_text(json.dumps({**SETTING, "cycles": rounds // (BLOCKS * ROUNDS_PER_BLOCK)}))
    command = [sys.executable, "-m", "perennial.simulation.cli", "run", "run.yaml", "--set", "output=out"]
    environment = {**os.environ, **extra, "TMPDIR": str(scratch), "PYTHONPATH": os.getcwd()}
    metrics, samples, done = folder / "out" / "mc-psgd" / "metrics.jsonl", [], 0
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=nowhere, stderr=nowhere) as process:
        while process.poll() is None:
            done = _lines(metrics)
            if done:
                samples.append(_sample(process.pid, done, scratch))
            # What comes after the last round, the report, is no part of the rounds.
            if done >= rounds:
                break
            time.sleep(SECONDS_BETWEEN)
    if process.returncode != 0 or done < rounds:
        raise SystemExit(f"the run ended with {process.returncode} after {done} of {rounds} rounds")
    return samples


def peaks(samples: Sequence[Sample]) -> Sample:
    """Return the largest of each; the roles are those of the sample with the largest total."""
    top = max(samples, key=lambda sample: sample.total)
    files, temporary = max(s.files for s in samples), max(s.temporary for s in samples)
    return Sample(samples[-1].server_round, top.rss, files, temporary)


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Draw resident memory by role over the rounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    rounds = [sample.server_round for sample in samples]
    axes.stackplot(rounds, *([s.rss.get(role, 0) / 2**20 for s in samples] for role in ROLES), labels=ROLES)
    axes.axvline(EARLY_ROUND, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="round", ylabel="resident memory, MiB", xlim=(0, rounds[-1]), ylim=(0, None))
    axes.legend(loc="lower right", ncols=len(ROLES), fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _sample(root: int, done: int, scratch: Path) -> Sample:
    rss: Counter[str] = Counter()
    files = 0
    for pid in family(root):
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            role = "driver" if pid == root else _role(command_line(pid))
            files += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:  # it ended just now
            continue
        rss[role] += pages * os.sysconf("SC_PAGE_SIZE")
    temporary = sum(path.lstat().st_size for path in scratch.rglob("*") if path.is_file())
    return Sample(done, dict(rss), files, temporary)


def _role(command: str) -> str:
    names = {"ray::Worker": "workers", "raylet/raylet": "raylet", "gcs_server": "gcs"}
    return next((role for part, role in names.items() if part in command.partition(" ")[0]), "agents")


def _lines(path: Path) -> int:
    """Return the last round of a metrics file, from its end."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    return int(json.loads(lines[-1])["server-round"]) if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000, help="a multiple of 100 above 500 (default: 10000)")
    parser.add_argument("--object-store", action="store_true", help="send every model through Ray's object store")
    parser.add_argument("--figure", type=Path, help="where to draw memory over the rounds")
    options = parser.parse_args()
    if options.rounds % (BLOCKS * ROUNDS_PER_BLOCK) or options.rounds <= EARLY_ROUND:
        parser.error("--rounds must be a multiple of 100 above 500")
    extra = {"RAY_max_direct_call_object_size": "1000"} if options.object_store else {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="long-") as folder:
        samples = measure(options.rounds, Path(folder), extra)
    if options.figure:
        draw(samples, options.figure)
    early = peaks([sample for sample in samples if sample.server_round <= EARLY_ROUND] or samples[:1])
    late = peaks(samples)
    print(f"| peak by round | {' | '.join(ROLES)} | all, MiB | open files | temporary, MiB |")
    print(f"|---|{'---|' * (len(ROLES) + 3)}")
    for name, peak in ((EARLY_ROUND, early), (options.rounds, late)):
        columns = " | ".join(f"{peak.rss.get(role, 0) / 2**20:.0f}" for role in ROLES)
        print(f"| {name} | {columns} | {peak.total / 2**20:.0f} | {peak.files} | {peak.temporary / 2**20:.1f} |")
    memory, files = late.total / early.total - 1, late.files / early.files - 1
    print(f"memory {memory:+.1%}, open files {files:+.1%}; {len(samples)} samples, {time.monotonic() - start:.0f} s")
    return int(memory >= MOST_GROWTH or files >= MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
