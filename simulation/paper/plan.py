"""What there is to run: one experiment file a figure, the seeds of each, and a quick version that keeps the shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import AUTO
from perennial.simulation import experiment
from perennial.simulation.experiment import Experiment

FILES = Path(__file__).resolve().parents[1] / "experiments"


@dataclass(frozen=True)
class Part:
    """An experiment file by name. key: the setting that it sweeps, '' where it compares strategies alone.

    known: other parts whose runs this one does not train again, each with the value of the setting that they have.
    """

    name: str
    key: str = ""
    seeds: tuple[int, ...] = (0,)
    known: tuple[tuple[str, str], ...] = ()


PARTS = (
    Part("figure2", seeds=(0, 1, 2)),
    Part("figure2-told", seeds=(0, 1, 2)),
    Part("figure3", "local-iterations", known=(("figure2", "10"),)),
    Part("figure4", "blocks", known=(("figure2", "5"),)),
    Part("figure5", "participation"),
    Part("figure2-nine-labels"),
    Part("contradiction", "rounds-per-block"),
    Part("calibration-blocks", "block-skew", known=(("figure2", "0.4"), ("figure4", "0.4"))),
    Part("calibration-labels", "labels-per-block", known=(("figure2-nine-labels", "9"),)),
    Part("sensitivity-labels", "labels-per-block"),
    Part("sensitivity-skew", "client-skew"),
    Part("sensitivity-vote", "selection-examples"),
    Part("neighbours", "labels-per-block"),
)


def chosen(only: Sequence[str], parts: Sequence[Part] = PARTS) -> list[Part]:
    """Return those of ``parts`` that are named in ``only``, in their order; all where it is empty."""
    names = [part.name for part in parts]
    for name in only:
        if name not in names:
            raise InputError(f"--only takes {', '.join(names)}, got {name!r}")
    return [part for part in parts if not only or part.name in only]


def experiments(part: Part, output: Path, *, quick: bool) -> list[Experiment]:
    """Return the part's experiment for each seed, in folders of ``output`` named by part and seed."""
    loaded = []
    for seed in part.seeds[:1] if quick else part.seeds:
        one = experiment.load(FILES / f"{part.name}.yaml", [f"seed={seed}"])
        passes = tuple(tuple(replace(run, config=shortened(run.config)) for run in runs) for runs in one.passes)
        folder = output / f"{part.name}-seed{seed}"
        loaded.append(replace(one, output=folder, passes=passes if quick else one.passes))
    return loaded


def together(experiments: Sequence[Experiment], output: Path) -> Experiment:
    """Return all passes of some experiments, whose folders lie in ``output``, as one: Ray then starts once."""
    passes = [
        tuple(replace(run, name=f"{experiment.output.relative_to(output)}/{run.name}") for run in one)
        for experiment in experiments
        for one in experiment.passes
    ]
    return Experiment(experiments[0].title, output, tuple(passes))


def shortened(config: RunConfig) -> RunConfig:
    """Return the run in a twentieth of its rounds on a tenth of its clients, on digits, which need no download."""
    rounds = max(2, config.rounds_per_block // 20)
    return replace(
        config,
        data="digits",
        model=AUTO,
        clients=max(20, config.clients // 10),
        cycles=min(config.cycles, 3),
        rounds_per_block=rounds,
        eval_every=max(1, rounds // 4),
        batch_size=8,
        lr_mixed=0.1,
        lr_separate=0.1,
    )
