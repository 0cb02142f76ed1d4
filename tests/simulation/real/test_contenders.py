"""Everyone on the page is a run of both experiment files, with equal rounds, trained on the past alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from perennial.simulation.paper import plan
from perennial.simulation.real.contenders import CONTENDERS, PARTS, SEEDS


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_everyone_is_run_for_all_seeds_with_equal_rounds(part: plan.Part) -> None:
    loaded = plan.experiments(part, Path("runs"), quick=False)
    assert len(loaded) == len(SEEDS) >= 5
    for seed, one in enumerate(loaded):
        runs = {run.name: run.config for runs in one.passes for run in runs}
        assert {contender.run for contender in CONTENDERS} == runs.keys()
        assert {config.seed for config in runs.values()} == {seed}
        assert len({(config.cycles, config.rounds_per_block, config.local_iterations) for config in runs.values()}) == 1
        assert len({(config.batch_size, config.lr_mixed, config.lr_separate) for config in runs.values()}) == 1
        assert {config.data for config in runs.values()} == {part.name}
        assert [name for name, config in runs.items() if config.shuffled] == ["fedavg-shuffled"]


def test_all_seeds_of_a_part_are_run_on_one_ray() -> None:
    one = plan.together(plan.experiments(PARTS[0], Path("runs"), quick=False), Path("runs"))
    folders = {str(one.output / run.name) for runs in one.passes for run in runs}
    assert len(folders) == len(CONTENDERS) * len(SEEDS)
    assert {"runs/chicago-seed0/fedavg", "runs/chicago-seed4/told-block-mm-psgd"} <= folders
