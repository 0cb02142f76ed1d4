"""What is kept of a run in the repository: the evaluated rounds, and a line that says what the run was.

NAME.csv        a line for each evaluated round: accuracies in %, megabytes and seconds until then, and the share of the
                votes since the line before that the separate chain won
NAME-runs.csv   a line for each run
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from perennial.server.report.columns import Evaluated, FloatArray, IntArray, RunResult, over_by_rounds
from perennial.server.report.quantities import separate_share_at

_RUN_KEYS = ("run", "seed", "strategy", "setting", "shuffled", "blocks", "rounds-per-block", "planned")
_ROUND_KEYS = ("run", "seed", "round", "cycle", "block", "mean")
_COST_KEYS = ("megabytes", "seconds", "separate")


@dataclass(frozen=True, eq=False)
class Series:
    """One run of one seed, by rounds. planned: the rounds that it was to have."""

    run: str
    seed: int
    strategy: str
    setting: str
    shuffled: bool
    blocks: int
    rounds_per_block: int
    planned: int
    evaluated: Evaluated

    @property
    def last_round(self) -> int:
        """The last round that was evaluated."""
        return int(self.evaluated.server_round[-1])

    @property
    def whole(self) -> bool:
        """Whether the run got to its end."""
        return self.last_round >= self.planned

    @property
    def place(self) -> IntArray:
        """Which of its block's rounds each evaluated round is, from 1."""
        return (self.evaluated.server_round - 1) % self.rounds_per_block + 1

    def until(self, server_round: int) -> Series:
        """Return the run as if it had ended after ``server_round``."""
        return replace(self, planned=server_round, evaluated=self.evaluated.until(server_round))


def from_result(result: RunResult, key: str) -> Series:
    """Return what is kept of a run; ``key`` is the setting that its experiment sweeps."""
    config, per_block = result.config, int(str(result.config["rounds-per-block"]))
    return Series(
        run=result.name,
        seed=int(str(config["seed"])),
        strategy=str(config["strategy"]),
        setting=str(config[key]) if key else "",
        shuffled=bool(config["shuffled"]),
        blocks=result.blocks,
        rounds_per_block=per_block,
        planned=result.blocks * per_block * int(str(config["cycles"])),
        evaluated=result.evaluated,
    )


def furthest(kept: Sequence[Series], found: Sequence[Series]) -> list[Series]:
    """Return what is kept with what was found now; a run of a seed is replaced unless it was to go and went further."""
    known = {(one.run, one.seed): one for one in kept}
    for one in found:
        before = known.get((one.run, one.seed))
        if before is None or before.planned != one.planned or before.last_round <= one.last_round:
            known[one.run, one.seed] = one
    return [known[key] for key in sorted(known)]


def write(folder: Path, name: str, series: Sequence[Series]) -> None:
    """Write both files of an experiment."""
    most = max(one.blocks for one in series)
    blocks = [f"block-{block}" for block in range(most)]
    runs = [
        [one.run, one.seed, one.strategy, one.setting, int(one.shuffled), one.blocks, one.rounds_per_block, one.planned]
        for one in series
    ]
    rounds = [
        [one.run, one.seed, *line, *[""] * (most - one.blocks), *cost]
        for one in series
        for line, cost in _lines(one.evaluated)
    ]
    write_csv(folder / f"{name}-runs.csv", _RUN_KEYS, runs)
    write_csv(folder / f"{name}.csv", (*_ROUND_KEYS, *blocks, *_COST_KEYS), rounds)


def _lines(evaluated: Evaluated) -> Iterable[tuple[list[object], list[str]]]:
    """Yield for each evaluated round its place with its accuracies, and what it cost."""
    shares = separate_share_at(evaluated)
    for at, server_round in enumerate(evaluated.server_round):
        place = [server_round, evaluated.cycle[at], evaluated.block[at]]
        accuracies = [evaluated.mean_accuracy[at], *evaluated.accuracy[at]]
        yield (
            [*place, *(_number(100 * value, 2) for value in accuracies)],
            [_number(evaluated.bytes[at] / 1e6, 1), _number(evaluated.seconds[at], 1), _number(shares[at], 3)],
        )


def read(folder: Path, name: str) -> list[Series]:
    """Return the series of an experiment as ``write`` left them; none where it was never written."""
    if not (folder / f"{name}-runs.csv").exists():
        return []
    lines: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for line in read_csv(folder / f"{name}.csv"):
        lines.setdefault((line["run"], line["seed"]), []).append(line)
    return [_series(run, lines[run["run"], run["seed"]]) for run in read_csv(folder / f"{name}-runs.csv")]


def _series(run: Mapping[str, str], lines: Sequence[Mapping[str, str]]) -> Series:
    blocks, per_block = int(run["blocks"]), int(run["rounds-per-block"])
    return Series(
        run=run["run"],
        seed=int(run["seed"]),
        strategy=run["strategy"],
        setting=run["setting"],
        shuffled=run["shuffled"] == "1",
        blocks=blocks,
        rounds_per_block=per_block,
        planned=int(run["planned"]),
        evaluated=_evaluated(lines, blocks, per_block),
    )


def _evaluated(lines: Sequence[Mapping[str, str]], blocks: int, rounds_per_block: int) -> Evaluated:
    def whole(key: str) -> IntArray:
        return np.array([int(line[key]) for line in lines], np.int64)

    def real(key: str) -> FloatArray:
        return np.array([float(line[key] or "nan") for line in lines])

    rounds, shares = whole("round"), real("separate")
    # A run that votes does so in every round: those of a line are the rounds since the line before.
    votes = np.where(np.isnan(shares), 0, np.diff(rounds, prepend=0))
    return Evaluated(
        server_round=rounds,
        cycle=whole("cycle"),
        block=whole("block"),
        cycles_over=over_by_rounds(rounds, blocks, rounds_per_block),
        mean_accuracy=real("mean") / 100,
        accuracy=np.stack([real(f"block-{block}") for block in range(blocks)], axis=1) / 100,
        bytes=_nearest(real("megabytes") * 1e6),
        seconds=real("seconds"),
        votes=votes,
        won=_nearest(np.nan_to_num(shares) * votes),
    )


def _nearest(values: FloatArray) -> IntArray:
    return np.rint(values).astype(np.int64)


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
