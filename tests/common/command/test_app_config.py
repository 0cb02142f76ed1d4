"""The configuration of a run of a user's own app: keys, blocks by name, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from perennial.common.command.app_config import AppConfig, app_flags, with_block_names
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import key_of

OWN = {"app": "mine.client:app", "initial": "mine.model:initial"}


def test_a_key_that_runs_of_both_kinds_have_means_the_same() -> None:
    both = {item.name: item for item in fields(RunConfig)}
    shared = [item for item in fields(AppConfig) if item.name in both and item.name not in ("strategy", "blocks")]
    assert len(shared) > 10
    for item in shared:
        assert (item.default, item.metadata) == (both[item.name].default, both[item.name].metadata)
    assert not {key_of(item) for item in app_flags()} & set(RunConfig().to_mapping())


def test_a_configuration_comes_back_from_its_mapping() -> None:
    config = AppConfig.from_mapping({**OWN, "blocks": "day, night", "train-config": {"lr": 0.1, "name": "x"}})
    assert config.to_mapping()["train-config"] == {"lr": 0.1, "name": "x"}
    assert AppConfig.from_mapping(config.to_mapping()) == config


@pytest.mark.parametrize(
    ("blocks", "names"),
    [(3, ("0", "1", "2")), ("3", ("0", "1", "2")), ("day, night", ("day", "night")),
     (["day", "night"], ("day", "night")), ("day", ("day",))],
)  # fmt: skip
def test_blocks_are_a_number_or_names(blocks: Any, names: tuple[str, ...]) -> None:
    assert AppConfig.from_mapping(with_block_names({**OWN, "blocks": blocks})).schedule().names == names


def test_the_clock_names_the_blocks() -> None:
    config = AppConfig.from_mapping({**OWN, "clock": "day: 08:00-20:00, night: 20:00-08:00"})
    assert config.schedule().names == ("day", "night")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"initial": ""}, "initial must be given as package.module:name, got ''"),
        ({"app": "mine.client"}, "app must be given as package.module:name"),
        ({"strategy": "fedrep"}, "strategy must be one of fedavg, mm-psgd, mc-psgd"),
        ({"lr-mixed": 0.1}, "lr-mixed is a key of the project's own app"),
        ({"trian-config": {}}, "unknown key 'trian-config'; did you mean train-config?"),
        ({"train-config": 3}, "train-config must be names with values"),
        ({"train-config": {"lr": [1, 2]}}, "train-config: 'lr' must be a name with a number, true, false or text"),
        ({"blocks": "day, day"}, "blocks has 'day' twice"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"blocks": True}, "blocks must be text"),
        ({"vote-weights": "clients"}, "vote-weights must be one of examples, nodes"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AppConfig.from_mapping({**OWN, **keys})
