"""The plan: every file loads, and the quick version keeps the shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import InputError
from simulation.paper import plan
from simulation.paper.plan import PARTS


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_is_a_file_with_the_choices_of_figure_2(part: plan.Part) -> None:
    one = plan.experiments(part, Path("runs"), quick=False)[0]
    configs = [run.config for runs in one.passes for run in runs]
    assert {config.data for config in configs} == {"cifar10"}
    assert {config.selection_examples for config in configs} == {10}
    assert {config.batch_size for config in configs} == {2}
    if part.key != "labels-per-block":
        assert {config.labels_per_block for config in configs} == {8}
    if part.key != "client-skew":
        assert {config.client_skew for config in configs} == {0.0}
    if part.key:
        assert len({config.to_mapping()[part.key] for config in configs}) > 1


def test_figure_2_is_run_for_three_seeds_in_folders_of_their_own() -> None:
    loaded = plan.experiments(PARTS[0], Path("runs"), quick=False)
    assert [str(one.output) for one in loaded] == ["runs/figure2-seed0", "runs/figure2-seed1", "runs/figure2-seed2"]
    assert [{run.config.seed for runs in one.passes for run in runs} for one in loaded] == [{0}, {1}, {2}]


def test_a_cycle_of_figure_4_has_always_1000_rounds() -> None:
    (one,) = plan.experiments(PARTS[2], Path("runs"), quick=False)
    pairs = {(run.config.blocks, run.config.rounds_per_block) for runs in one.passes for run in runs}
    (figure2, *_) = plan.experiments(PARTS[0], Path("runs"), quick=False)
    pairs |= {(run.config.blocks, run.config.rounds_per_block) for runs in figure2.passes for run in runs}
    assert pairs == {(2, 500), (5, 200), (10, 100)}


@pytest.mark.parametrize("part", [part for part in PARTS if part.known], ids=lambda part: part.name)
def test_what_a_part_leaves_to_figure_2_differs_from_it_in_the_swept_setting_alone(part: plan.Part) -> None:
    swept = {part.key, "cycles", "eval-every"} | ({"rounds-per-block"} if part.key == "blocks" else set())
    (figure2, *_), (one,) = (plan.experiments(each, Path("runs"), quick=False) for each in (PARTS[0], part))
    known = next(run.config.to_mapping() for runs in figure2.passes for run in runs if run.name == "mc-psgd")
    assert str(known[part.key]) == part.known
    for config in (run.config.to_mapping() for runs in one.passes for run in runs if run.config.strategy == "mc-psgd"):
        assert {key for key in config if config[key] != known[key]} <= swept


def test_neighbours_are_passes_of_their_own_and_the_paper_is_one() -> None:
    (one,) = plan.experiments(PARTS[6], Path("runs"), quick=False)
    of_eight = [[run.config.strategy for run in runs] for runs in one.passes if runs[0].config.labels_per_block == 8]
    assert of_eight == [["mc-psgd", "mm-psgd", "fedavg"], ["fedavgm"], ["fedadam"], ["fedrep"], ["ifca"]]


def test_quick_keeps_strategies_blocks_and_swept_values_on_a_twentieth_of_the_rounds() -> None:
    for part in PARTS:
        (quick,) = plan.experiments(part, Path("runs"), quick=True)
        whole = plan.experiments(part, Path("runs"), quick=False)[0]
        for short, full in zip(quick.passes, whole.passes, strict=True):
            for few, many in zip(short, full, strict=True):
                assert few.name == many.name
                assert (few.config.strategy, few.config.blocks) == (many.config.strategy, many.config.blocks)
                assert few.config.rounds_per_block * 20 == many.config.rounds_per_block
                assert few.config.data == "digits"
                if part.key:
                    assert few.config.to_mapping()[part.key] == many.config.to_mapping()[part.key]


def test_only_chooses_parts_by_name() -> None:
    assert [part.name for part in plan.chosen(["figure5", "figure3"])] == ["figure3", "figure5"]
    assert plan.chosen([]) == list(PARTS)
    with pytest.raises(InputError, match=r"--only takes figure2, .* got 'figure6'"):
        plan.chosen(["figure6"])
