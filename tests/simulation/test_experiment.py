"""Experiment files: sweeps, overrides, names, and which runs share a pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from perennial.common.command.errors import InputError
from perennial.simulation.experiment import Experiment, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "figure.yaml"


def loaded(file: Path, text: str, *overrides: str) -> Experiment:
    file.write_text(text)
    return load(file, overrides)


def names(experiment: Experiment) -> list[list[str]]:
    return [[run.name for run in one] for one in experiment.passes]


def test_one_run_has_no_name_and_lies_in_the_output_itself(file: Path) -> None:
    experiment = loaded(file, "blocks: 3")
    assert names(experiment) == [[""]]
    assert experiment.output == Path("runs/figure")
    assert experiment.title == "figure"


def test_strategies_share_one_pass_with_the_most_demanding_first(file: Path) -> None:
    assert names(loaded(file, "strategy: [fedavg, mm-psgd, mc-psgd]")) == [["mc-psgd", "mm-psgd", "fedavg"]]


def test_averaging_and_decay_share_a_pass_too(file: Path) -> None:
    experiment = loaded(file, "strategy: mm-psgd\nruns: [{averaging: mean}, {decay: 0.5}, {decay: 0.9}]")
    assert [len(one) for one in experiment.passes] == [3]


def test_what_changes_training_takes_a_pass_of_its_own(file: Path) -> None:
    experiment = loaded(file, "strategy: [fedavg, mm-psgd]\nseed: [1, 2]")
    assert names(experiment) == [["mm-psgd-seed-1", "fedavg-seed-1"], ["mm-psgd-seed-2", "fedavg-seed-2"]]


def test_lists_sweep_as_a_product(file: Path) -> None:
    experiment = loaded(file, "lr-mixed: [0.1, 0.2]\nclients: [10, 20]")
    found = [(run.config.lr_mixed, run.config.clients) for one in experiment.passes for run in one]
    assert found == [(0.1, 10), (0.1, 20), (0.2, 10), (0.2, 20)]


def test_runs_override_the_file_and_set_overrides_both(file: Path) -> None:
    text = "seed: 1\nclients: 4\nruns: [{strategy: fedavg, clients: 5}, {strategy: mm-psgd}]"
    experiment = loaded(file, text, "seed=7", "output=elsewhere")
    runs = [run for one in experiment.passes for run in one]
    assert {(run.name, run.config.clients, run.config.seed) for run in runs} == {
        ("fedavg-clients-5", 5, 7),
        ("mm-psgd-clients-4", 4, 7),
    }
    assert experiment.output == Path("elsewhere")


@pytest.mark.parametrize("override", ["output=", "output=null", "output=''"])
def test_no_output_is_the_default_one_also_where_the_file_has_another(file: Path, override: str) -> None:
    assert loaded(file, "output: elsewhere", override).output == Path("runs/figure")
    assert loaded(file, "output:").output == Path("runs/figure")


def test_a_run_without_a_name_is_named_by_what_differs(file: Path) -> None:
    assert names(loaded(file, "runs: [{name: , seed: 1}, {name: '', seed: 2}]")) == [["seed-1"], ["seed-2"]]


def test_a_run_may_be_made_from_another_by_a_merge(file: Path) -> None:
    text = "runs: [&a {name: a, strategy: mm-psgd, cycles: 2}, {<<: *a, name: b, cycles: 3}]"
    runs = [run for one in loaded(file, text).passes for run in one]
    assert [(run.name, run.config.strategy, run.config.cycles) for run in runs] == [
        ("a", "mm-psgd", 2),
        ("b", "mm-psgd", 3),
    ]


def test_set_may_sweep(file: Path) -> None:
    assert len(loaded(file, "blocks: 2", "seed=[1, 2, 3]").passes) == 3


def test_several_runs_never_share_a_folder_nor_lie_in_the_output_itself(file: Path) -> None:
    for text in ("shuffled: [false, true]", "data: [a/b, c/d]", "shuffled: [false, true]\nstrategy: [fedavg, mm-psgd]"):
        found = [name for one in names(loaded(file, text)) for name in one]
        assert len(set(found)) == len(found)
        assert all(name and "/" not in name for name in found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "cannot be read"),
        ("- 1", "must hold keys and values, got list"),
        ("", "is empty; it must hold keys and values"),
        ("blocks: 3\nblocks: 4", "a key stands twice: blocks"),
        ("runs: [{seed: 1, seed: 2}]", "a key stands twice: seed"),
        ("yes: 1\ntrue: 2", "a key stands twice: true"),
        ("\x00", "cannot be read"),
        ("blocks: []", "blocks is an empty list; give at least one value"),
        ("runs: 3", "runs must be a list"),
        ("runs: []", "runs must be a list"),
        ("runs: [3]", "runs must be a list"),
        ("seed: [1, 1]", "twice|the same"),
        ("nonsense: 1", "unknown key 'nonsense'"),
        ("blocks: {a: 1}", "blocks must be a whole number"),
        ("1: 2", "unknown key '1'"),
        ("output: [a, b]", r"output must be text, the name of one folder, got \['a', 'b'\]"),
        ("output: 3", "output must be text, the name of one folder, got 3"),
        ("runs: [{name: ../up}]", r"a run's name must be a folder's, without /, and not \. or \.\., got '\.\./up'"),
        ("runs: [{name: a/b}]", "name must be a folder's, .* got 'a/b'"),
        ("runs: [{name: ..}]", r"name must be a folder's, .* got '\.\.'"),
        ("runs: [{name: .}]", r"name must be a folder's, .* got '\.'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(file: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        loaded(file, text)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(InputError, match=r"figure\.yaml does not exist"):
        load(file)


def test_an_override_of_output_must_be_one_folder(file: Path) -> None:
    with pytest.raises(InputError, match=r"output must be text, the name of one folder, got \['a', 'b'\]"):
        loaded(file, "output: elsewhere", "output=[a, b]")


@pytest.mark.parametrize("override", ["seed", "=3", "seed=[", "seed: 3"])
def test_a_wrong_override_is_refused(file: Path, override: str) -> None:
    with pytest.raises(InputError, match="--set"):
        loaded(file, "blocks: 2", override)


def test_an_override_with_colons_is_text(file: Path) -> None:
    clock = "day: 08:00-20:00, night: 20:00-08:00"
    (((run,),),) = [loaded(file, "blocks: 2", f"clock={clock}").passes]
    assert run.config.clock == clock
