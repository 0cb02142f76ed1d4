"""A user's own app trained in a folder: its strategies, what is refused, and going on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, MetricRecord

from perennial.common.command.app_config import AppConfig
from perennial.common.command.errors import InputError, RunError
from perennial.example import example_arrays, example_grid
from perennial.server.run.app_training import initial_arrays, is_done, strategy_of, train_app
from perennial.server.run.library_folder import discard_run
from perennial.server.strategies.one_model import OneModel
from tests.conftest import read_metrics, read_predictors

KEYS: dict[str, object] = {
    "app": "perennial.example:example_app",
    "initial": "perennial.example:example_arrays",
    "blocks": "day, night",
    "cycles": 2,
    "rounds-per-block": 1,
    "train-config": {"lr": 0.1},
}


def config(**changes: object) -> AppConfig:
    return AppConfig.from_mapping({**KEYS, **{key.replace("_", "-"): one for key, one in changes.items()}})


def trained(folder: Path, **changes: object) -> Path:
    train_app(config(**changes), folder, example_grid(), nodes=10)
    return folder


def test_the_strategy_is_the_library_s_with_what_the_keys_say() -> None:
    made = strategy_of(config(strategy="mc-psgd", averaging="mean", loss_key="l", vote_weights="nodes"))
    assert made.settings == {"averaging": "mean", "loss_key": "l", "vote_weights": "nodes", "one_message": False}
    assert strategy_of(config(round_attempts=0)).round_attempts is None
    assert isinstance(strategy_of(config(strategy="fedavg")), OneModel)


def test_fedavg_has_one_model_in_all_blocks_which_is_mm_psgd_s_mixed_chain(tmp_path: Path) -> None:
    runs = {name: trained(tmp_path / name, strategy=name) for name in ("fedavg", "mm-psgd")}
    day, night = read_predictors(runs["fedavg"])
    assert {key: one.tolist() for key, one in day.items()} == {key: one.tolist() for key, one in night.items()}
    rows = [[row["train-loss-mixed"] for row in read_metrics(run)] for run in runs.values()]
    assert rows[0] == rows[1]
    assert json.loads((runs["fedavg"] / "predictors" / "manifest.json").read_text())["strategy"] == "fedavg"


def test_a_run_goes_on_and_is_done_in_the_end(tmp_path: Path) -> None:
    first = config(cycles=1)
    trained(tmp_path / "one", cycles=1)
    assert is_done(first, tmp_path / "one")
    assert not is_done(config(cycles=2), tmp_path / "one")
    trained(tmp_path / "one", cycles=2)
    trained(tmp_path / "other", cycles=2)
    mine, whole = read_predictors(tmp_path / "one"), read_predictors(tmp_path / "other")
    assert [{key: one.tobytes() for key, one in block.items()} for block in mine] == [
        {key: one.tobytes() for key, one in block.items()} for block in whole
    ]
    discard_run(tmp_path / "one")
    assert not is_done(config(cycles=2), tmp_path / "one")


def test_a_run_of_other_settings_does_not_go_on(tmp_path: Path) -> None:
    trained(tmp_path, cycles=1)
    for changes, named in (({"train_config": {"lr": 0.2}}, "train-config"), ({"seed": 3}, "seed"),
                           ({"strategy": "mm-psgd"}, "strategy")):  # fmt: skip
        with pytest.raises(InputError, match=f"holds a run with another .*{named}"):
            trained(tmp_path, **{"cycles": 1, **changes})


@pytest.mark.parametrize(
    "name", ["perennial.example:example_app", "perennial:__all__", "perennial.testing:check_strategy"]
)
def test_an_initial_model_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="must be an ArrayRecord, or a function without arguments that makes one"):
        initial_arrays(name)


def test_too_few_nodes_are_waited_for_until_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"10 of 11 nodes were there after 0\.01 s"):
        train_app(config(node_timeout=0.01), tmp_path, example_grid(), nodes=11)


def test_what_was_measured_of_another_model_of_fedavg_s_is_forgotten(tmp_path: Path) -> None:
    def accuracy(server_round: int, _: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": server_round / 10})

    strategy = strategy_of(config(strategy="fedavg"))
    strategy.start(example_grid(), example_arrays(), evaluate_fn=accuracy, run_dir=tmp_path)
    assert [row["accuracy"] for row in read_metrics(tmp_path)] == [[0.1, None], [None, 0.2], [0.3, None], [None, 0.4]]
