"""The configuration: one set of keys, checked once, refused with the bound."""

from __future__ import annotations

import math
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import AUTO, key_of
from perennial.common.cycle.schedule import RoundSchedule

ROOT = Path(__file__).resolve().parents[3]

mappings = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(["fedavg", "mm-psgd", "mc-psgd"]),
        "blocks": st.integers(1, 100),
        "clients": st.integers(1, 10**6),
        "block-skew": st.floats(0, 1),
        "label-shift": st.integers(0, 20),
        "client-skew": st.floats(0, 1),
        "shuffled": st.booleans(),
        "decay": st.floats(0, 1),
        "participation": st.floats(0, 1, exclude_min=True),
        "lr-mixed": st.floats(1e-9, 1e9),
        "nodes": st.one_of(st.just(AUTO), st.integers(1, 1000)),
        "eval-every": st.one_of(st.just(AUTO), st.integers(1, 1000)),
        "seed": st.integers(0, 2**63 - 1),
        "output": st.text(max_size=20),
    },
)


@given(mappings)
def test_to_mapping_and_from_mapping_are_inverse(mapping: dict[str, Any]) -> None:
    config = RunConfig.from_mapping(mapping)
    full = config.to_mapping()
    assert RunConfig.from_mapping(full) == config
    assert {key: full[key] for key in mapping} == mapping


def test_keys_are_the_fields_in_kebab_case() -> None:
    assert list(RunConfig().to_mapping()) == [item.name.replace("_", "-") for item in fields(RunConfig)]


def test_defaults_are_the_designs() -> None:
    design = {
        "strategy": "mc-psgd", "data": "digits", "blocks": 5, "clients": 20, "labels-per-block": 4, "shuffled": False,
        "client-skew": 1.0, "local-iterations": 10, "batch-size": 2, "lr-mixed": 0.01, "lr-separate": 0.01,
        "participation": 1.0, "averaging": "exponential", "decay": 0.5, "weighting": "clients",
        "selection-examples": 0, "min-replies": 0.5, "round-timeout": 600.0, "nodes": AUTO, "engine": AUTO, "seed": 0,
    }  # fmt: skip
    assert {key: RunConfig().to_mapping()[key] for key in design} == design


def test_every_key_is_a_default_of_the_flower_app() -> None:
    """`flwr run . -c key=value` takes only keys that the app declares."""
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"] == RunConfig().to_mapping()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clients", 0, "clients must be at least 1, got 0"),
        ("blocks", 0, "blocks must be at least 1, got 0"),
        ("decay", 2, "decay must be at least 0 and at most 1, got 2"),
        ("decay", -0.1, "decay must be at least 0 and at most 1, got -0.1"),
        ("participation", 0, "participation must be more than 0 and at most 1, got 0"),
        ("participation", 1.5, "participation must be more than 0 and at most 1, got 1.5"),
        ("labels-per-block", 0, "labels-per-block must be at least 1, got 0"),
        ("block-skew", -0.5, "block-skew must be at least 0 and at most 1, got -0.5"),
        ("client-skew", 1.01, "client-skew must be at least 0 and at most 1, got 1.01"),
        ("cycles", 0, "cycles must be at least 1, got 0"),
        ("rounds-per-block", -3, "rounds-per-block must be at least 1, got -3"),
        ("local-iterations", 0, "local-iterations must be at least 1, got 0"),
        ("batch-size", -1, "batch-size must be at least 0, got -1"),
        ("lr-mixed", 0, "lr-mixed must be more than 0, got 0"),
        ("lr-separate", -1.0, "lr-separate must be more than 0, got -1.0"),
        ("min-replies", 0, "min-replies must be more than 0 and at most 1, got 0"),
        ("round-timeout", 0, "round-timeout must be more than 0, got 0"),
        ("selection-examples", -1, "selection-examples must be at least 0, got -1"),
        ("nodes", -1, "nodes must be at least 1 or auto, got -1"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("strategy", "sgd", "strategy must be one of fedavg, .*mm-psgd,.*got 'sgd'"),
        ("averaging", "median", "averaging must be one of mean, exponential, got 'median'"),
        ("weighting", "", "weighting must be one of clients, examples, got ''"),
        ("engine", "gpu", "engine must be one of auto, .*got 'gpu'"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_bound_and_value(key: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunConfig.from_mapping({key: value})


@pytest.mark.parametrize(("text", "value"), [("1e-3", 0.001), ("2.5e2", 250.0), (".5E+1", 5.0)])
def test_a_number_in_powers_of_ten_is_one_though_yaml_says_text(text: str, value: float) -> None:
    assert RunConfig.from_mapping({"lr-mixed": yaml.safe_load(text)}).lr_mixed == value


@pytest.mark.parametrize("text", ["0001-01-01", "9999-12-31T12:00"])
def test_a_simulated_clock_starts_in_our_time(text: str) -> None:
    with pytest.raises(InputError, match="clock-start must be in the years 1900 to 2900"):
        RunConfig(clock="a: 00:00-12:00, b: 12:00-24:00", clock_start=text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients", "20"), ("clients", 20.0), ("clients", True), ("clients", None), ("clients", [1]),
        ("clients", AUTO), ("decay", "0.5"), ("decay", True), ("decay", math.nan), ("decay", math.inf),
        ("lr-mixed", math.inf), ("lr-mixed", math.nan), ("lr-mixed", 10**400), ("lr-mixed", "1e999"), ("shuffled", 1),
        ("shuffled", "true"), ("data", 5), ("data", None), ("seed", 2**63), ("seed", 1.5),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_key(key: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{key} must be"):
        RunConfig.from_mapping({key: value})


def test_a_head_for_each_block_is_not_told_the_block() -> None:
    with pytest.raises(InputError, match="fedrep keeps a last layer for each block, and takes no model that is told"):
        RunConfig(strategy="fedrep", told="block")


def test_an_unknown_key_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown key 'client'; did you mean clients"):
        RunConfig.from_mapping({"client": 3})
    with pytest.raises(InputError, match="unknown key 'zzz'; the keys are strategy, data"):
        RunConfig.from_mapping({"zzz": 3})
    with pytest.raises(InputError, match="unknown key 'rounds_per_block'; did you mean rounds-per-block"):
        RunConfig.from_mapping({"rounds_per_block": 3})
    with pytest.raises(InputError, match="unknown key '3'"):
        RunConfig.from_mapping({3: 3})  # type: ignore[dict-item]


def test_every_message_is_one_line() -> None:
    for item in fields(RunConfig):
        for value in (None, [], "x\ny", -(10**30), 10**30, math.nan):
            try:
                RunConfig.from_mapping({key_of(item): value})
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017


def test_a_whole_number_serves_as_a_real_one() -> None:
    decay = RunConfig.from_mapping({"decay": 1}).decay
    assert decay == 1.0
    assert isinstance(decay, float)


@pytest.mark.parametrize(("rounds", "every"), [(1, 1), (4, 1), (5, 5), (8, 2), (10, 5), (12, 3), (100, 25)])
def test_evaluations_fall_on_the_last_round_of_a_block(rounds: int, every: int) -> None:
    assert RunConfig(rounds_per_block=rounds).evaluate_every() == every
    assert RunConfig(rounds_per_block=rounds, eval_every=7).evaluate_every() == 7


def test_the_schedule_counts_rounds_unless_a_clock_is_given() -> None:
    assert schedule_of(RunConfig(blocks=3, cycles=2, rounds_per_block=4)) == RoundSchedule(3, 4, 2)
    clocked = RunConfig(clock="day: 08:00-20:00, night: 20:00-08:00", clock_start="2026-03-27T12:00")
    assert schedule_of(clocked).names == ("day", "night")


@pytest.mark.parametrize(
    "changes", [{"clock_start": "noon"}, {"clock": "day"}, {"clock": "day: 08:00-20:00", "timezone": "Mars/Base"}]
)
def test_a_wrong_clock_is_refused_at_once(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        RunConfig(**changes)
