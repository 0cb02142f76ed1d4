"""What is kept of a run in the repository: the evaluated rounds, and a line that says what the run was.

NAME.csv        a line an evaluated round: accuracies in %, megabytes and seconds until then, and the share of the
                rounds since the line before that the separate chain won
NAME-runs.csv   a line a run
Shapes: V evaluated rounds, M blocks.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perennial.server.report.quantities import FloatArray, IntArray, RunResult, share_won

_RUN_KEYS = ("run", "seed", "strategy", "setting", "shuffled", "blocks", "rounds-per-block", "planned")
_ROUND_KEYS = ("run", "seed", "round", "cycle", "block", "mean")
_COST_KEYS = ("megabytes", "seconds", "separate")


@dataclass(frozen=True, eq=False)
class Series:
    """One run of one seed. Accuracies lie in [0, 1]; planned: the rounds that it was to have."""

    run: str
    seed: int
    strategy: str
    setting: str
    shuffled: bool
    blocks: int
    rounds_per_block: int
    planned: int
    rounds: IntArray  # (V,), as are those below but for accuracy
    cycle: IntArray
    block: IntArray
    mean: FloatArray
    accuracy: FloatArray  # (V, M)
    megabytes: FloatArray
    seconds: FloatArray
    separate: FloatArray  # NaN where nothing was chosen

    @property
    def whole(self) -> bool:
        """Whether the run got to its end."""
        return int(self.rounds[-1]) >= self.planned

    @property
    def cycle_length(self) -> int:
        return self.blocks * self.rounds_per_block

    @property
    def place(self) -> IntArray:
        """Which of its block's rounds each evaluated round is, from 1."""
        return (self.rounds - 1) % self.rounds_per_block + 1

    def until(self, server_round: int) -> Series:
        """Return the run as if it had ended after ``server_round``."""
        kept = self.rounds <= server_round
        names = ("rounds", "cycle", "block", "mean", "accuracy", "megabytes", "seconds", "separate")
        return replace(self, planned=server_round, **{name: getattr(self, name)[kept] for name in names})


def from_result(result: RunResult, key: str) -> Series:
    """Return what is kept of a run; ``key`` is the setting that its experiment sweeps."""
    config, rounds, places = result.config, result.rounds, result.evaluated
    blocks, per_block = result.blocks, int(str(config["rounds-per-block"]))
    starts = np.concatenate([[0], places[:-1] + 1]) if len(places) else places
    return Series(
        run=result.name,
        seed=int(str(config["seed"])),
        strategy=str(config["strategy"]),
        setting=str(config[key]) if key else "",
        shuffled=bool(config["shuffled"]),
        blocks=blocks,
        rounds_per_block=per_block,
        planned=blocks * per_block * int(str(config["cycles"])),
        rounds=rounds.server_round[places],
        cycle=rounds.cycle[places],
        block=rounds.block[places],
        mean=result.mean_accuracy,
        accuracy=result.block_accuracy,
        megabytes=result.cumulative_bytes[places] / 1e6,
        seconds=result.cumulative_seconds[places],
        separate=np.array([share_won(rounds.chosen[a : b + 1]) for a, b in zip(starts, places, strict=True)]),
    )


def write(folder: Path, name: str, series: Sequence[Series]) -> None:
    """Write both files of an experiment."""
    most = max(one.blocks for one in series)
    blocks = [f"block-{block}" for block in range(most)]
    runs = [
        [one.run, one.seed, one.strategy, one.setting, int(one.shuffled), one.blocks, one.rounds_per_block, one.planned]
        for one in series
    ]
    rounds = [
        [
            *(one.run, one.seed, one.rounds[at], one.cycle[at], one.block[at], _number(100 * one.mean[at], 2)),
            *(_number(100 * value, 2) for value in one.accuracy[at]),
            *[""] * (most - one.blocks),
            *(_number(one.megabytes[at], 1), _number(one.seconds[at], 1), _number(one.separate[at], 3)),
        ]
        for one in series
        for at in range(len(one.rounds))
    ]
    write_csv(folder / f"{name}-runs.csv", _RUN_KEYS, runs)
    write_csv(folder / f"{name}.csv", (*_ROUND_KEYS, *blocks, *_COST_KEYS), rounds)


def read(folder: Path, name: str) -> list[Series]:
    """Return the series of an experiment as ``write`` left them; none where it was never written."""
    if not (folder / f"{name}-runs.csv").exists():
        return []
    lines: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for line in read_csv(folder / f"{name}.csv"):
        lines.setdefault((line["run"], line["seed"]), []).append(line)
    return [_series(run, lines[run["run"], run["seed"]]) for run in read_csv(folder / f"{name}-runs.csv")]


def _series(run: Mapping[str, str], lines: Sequence[Mapping[str, str]]) -> Series:
    def whole(key: str) -> IntArray:
        return np.array([int(line[key]) for line in lines], np.int64)

    def real(key: str) -> FloatArray:
        return np.array([float(line[key] or "nan") for line in lines])

    blocks = int(run["blocks"])
    return Series(
        run=run["run"],
        seed=int(run["seed"]),
        strategy=run["strategy"],
        setting=run["setting"],
        shuffled=run["shuffled"] == "1",
        blocks=blocks,
        rounds_per_block=int(run["rounds-per-block"]),
        planned=int(run["planned"]),
        rounds=whole("round"),
        cycle=whole("cycle"),
        block=whole("block"),
        mean=real("mean") / 100,
        accuracy=np.stack([real(f"block-{block}") for block in range(blocks)], axis=1) / 100,
        megabytes=real("megabytes"),
        seconds=real("seconds"),
        separate=real("separate"),
    )


def _number(value: float, digits: int) -> str:
    return "" if np.isnan(value) else f"{value:.{digits}f}"


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
