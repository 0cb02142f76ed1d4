"""The plan: every file loads, and the quick version keeps the shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perennial.common.command.errors import InputError
from perennial.simulation.paper import plan
from perennial.simulation.paper.claims import ABLATIONS
from perennial.simulation.paper.plan import PARTS

BY_NAME = {part.name: part for part in PARTS}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_is_a_file_with_the_choices_of_figure_2(part: plan.Part) -> None:
    one = plan.experiments(part, Path("runs"), quick=False)[0]
    configs = [run.config for runs in one.passes for run in runs]
    assert {config.data for config in configs} == {"cifar10"}
    assert {config.batch_size for config in configs} == {2}
    if part.key != "labels-per-block" and part.name not in ("figure2-nine-labels", "contradiction"):
        # All labels stand once among the blocks' own.
        assert {config.blocks * config.labels_per_block for config in configs} == {10}
        assert part.key == "block-skew" or {config.block_skew for config in configs} == {0.4}
    if part.key != "selection-examples":
        assert {config.selection_examples for config in configs} == {10}
    if part.key != "client-skew":
        assert {config.client_skew for config in configs} == {0.0}
    if part.key:
        assert len({config.to_mapping()[part.key] for config in configs}) > 1


def test_figure_2_is_run_for_three_seeds_in_folders_of_their_own() -> None:
    loaded = plan.experiments(PARTS[0], Path("runs"), quick=False)
    assert [str(one.output) for one in loaded] == ["runs/figure2-seed0", "runs/figure2-seed1", "runs/figure2-seed2"]
    assert [{run.config.seed for runs in one.passes for run in runs} for one in loaded] == [{0}, {1}, {2}]


def test_a_cycle_of_figure_4_has_always_1000_rounds() -> None:
    (one,) = plan.experiments(BY_NAME["figure4"], Path("runs"), quick=False)
    pairs = {(run.config.blocks, run.config.rounds_per_block) for runs in one.passes for run in runs}
    (figure2, *_) = plan.experiments(PARTS[0], Path("runs"), quick=False)
    pairs |= {(run.config.blocks, run.config.rounds_per_block) for runs in figure2.passes for run in runs}
    assert pairs == {(2, 500), (5, 200), (10, 100)}


def configs(part: plan.Part) -> dict[str, dict[str, Any]]:
    """Return the configurations of a part's first seed by the runs' names."""
    one = plan.experiments(part, Path("runs"), quick=False)[0]
    return {run.name: run.config.to_mapping() for runs in one.passes for run in runs}


LEFT = [(part, *left) for part in PARTS for left in part.known]


@pytest.mark.parametrize(("part", "other", "setting"), LEFT, ids=lambda value: getattr(value, "name", value))
def test_what_a_part_leaves_to_another_differs_from_it_in_the_swept_setting_alone(
    part: plan.Part, other: str, setting: str
) -> None:
    free = {part.key, "cycles", "eval-every"}
    if part.name != "figure3":
        free |= {"blocks", "rounds-per-block", "labels-per-block"}
    known = {name: config for name, config in configs(BY_NAME[other]).items() if name not in ABLATIONS}
    assert {str(config[part.key]) for config in known.values()} == {setting}
    for config in configs(part).values():
        same = next(one for one in known.values() if one["strategy"] == config["strategy"] and not one["shuffled"])
        assert {key for key in config if config[key] != same[key]} <= free


def test_figure_2_with_hard_blocks_differs_in_the_blocks_alone() -> None:
    soft, hard = (configs(BY_NAME[name]) for name in ("figure2", "figure2-nine-labels"))
    assert list(soft) == list(hard)
    for name, config in hard.items():
        assert {key for key in config if config[key] != soft[name][key]} == {"labels-per-block", "block-skew"}


def test_neighbours_are_passes_of_their_own_and_the_paper_is_one() -> None:
    (one,) = plan.experiments(PARTS[-1], Path("runs"), quick=False)
    of_eight = [[run.config.strategy for run in runs] for runs in one.passes if runs[0].config.labels_per_block == 8]
    assert of_eight == [["mc-psgd", "mm-psgd", "fedavg"], ["fedavgm"], ["fedadam"], ["fedrep"], ["ifca"],
                        *[["fedavgm"]] * 2, *[["fedadam"]] * 3]  # fmt: skip


def test_quick_keeps_strategies_blocks_and_swept_values_on_a_twentieth_of_the_rounds() -> None:
    for part in PARTS:
        (quick,) = plan.experiments(part, Path("runs"), quick=True)
        whole = plan.experiments(part, Path("runs"), quick=False)[0]
        for short, full in zip(quick.passes, whole.passes, strict=True):
            for few, many in zip(short, full, strict=True):
                assert few.name == many.name
                assert (few.config.strategy, few.config.blocks) == (many.config.strategy, many.config.blocks)
                assert few.config.rounds_per_block == max(2, many.config.rounds_per_block / 20)
                assert few.config.data == "digits"
                if part.key not in ("", "rounds-per-block"):
                    assert few.config.to_mapping()[part.key] == many.config.to_mapping()[part.key]


def test_only_chooses_parts_by_name() -> None:
    assert [part.name for part in plan.chosen(["figure5", "figure3"])] == ["figure3", "figure5"]
    assert plan.chosen([]) == list(PARTS)
    with pytest.raises(InputError, match=r"--only takes figure2, .* got 'figure6'"):
        plan.chosen(["figure6"])
