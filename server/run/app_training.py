"""One run of a user's own app in a folder: by the library's strategies, for flower-server and flower-simulation."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from perennial.common.command.app_config import AppConfig
from perennial.common.command.errors import InputError, RunError, shown
from perennial.common.command.naming import imported
from perennial.server.predict.versions import FINAL, MANIFEST
from perennial.server.run.library_folder import kept_in
from perennial.server.run.progress import AppProgress
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.mc_psgd import MCPSGD
from perennial.server.strategies.mm_psgd import MMPSGD
from perennial.server.strategies.one_model import OneModel

# Between two looks for nodes.
_LOOK_SECONDS = 0.2


def train_app(config: AppConfig, folder: Path, grid: Grid, *, nodes: int) -> None:
    """Train once ``nodes`` nodes are there; go on from what the folder has. The grid's clients have the app."""
    initial, strategy = initial_arrays(config.initial), strategy_of(config)
    # The generators that Flower's strategies draw from; a run that goes on puts them where they were.
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002
    with kept_in(folder, _about(config)) as keeper:
        wait_for(nodes, grid, config.node_timeout)
        strategy.start(
            grid,
            initial,
            timeout=config.round_timeout,
            train_config=ConfigRecord(dict(config.train_config)),
            evaluate_config=ConfigRecord(dict(config.evaluate_config)),
            run_dir=keeper,
            on_round=AppProgress(strategy.schedule),
        )


def is_done(config: AppConfig, folder: Path) -> bool:
    """Tell whether the folder has this run, and the run has ended."""
    try:
        found = yaml.safe_load((folder / "config.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return False
    same = {**_about(config), "cycles": config.cycles}
    known = isinstance(found, dict) and {key: found.get(key) for key in same} == same
    return known and (folder / FINAL / MANIFEST).exists()


def initial_arrays(name: str) -> ArrayRecord:
    """Return the initial model that ``name`` names: a record, or what a function without arguments returns."""
    found = imported("initial", name)
    arrays = found() if callable(found) and _takes_nothing(found) else found
    if not isinstance(arrays, ArrayRecord):
        raise InputError(
            f"initial {name!r} must be an ArrayRecord, or a function without arguments that makes one, "
            f"got {shown(arrays)}"
        )
    return arrays


def _takes_nothing(function: Callable[..., object]) -> bool:
    try:
        signature(function).bind()
    except TypeError:
        return False
    return True


def strategy_of(config: AppConfig) -> BlockStrategy:
    """Return the strategy of a run, around Flower's FedAvg."""
    # A device alone is enough to go on: whoever is there when a round begins takes part.
    inner = FedAvg(fraction_train=config.participation, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    options: dict[str, Any] = {
        "schedule": config.schedule(),
        "round_attempts": config.round_attempts or None,
    }
    if config.strategy == "fedavg":
        return OneModel(inner, **options)
    options |= {"averaging": config.averaging, "decay": config.decay}
    if config.strategy == "mm-psgd":
        return MMPSGD(inner, **options)
    return MCPSGD(
        inner,
        **options,
        separate_config=ConfigRecord(dict(config.separate_config)),
        loss_key=config.loss_key,
        vote_weights=config.vote_weights,
        one_message=config.one_message,
    )


def wait_for(nodes: int, grid: Grid, seconds: float) -> None:
    """Return once so many nodes are there; a RunError after ``seconds``, if that is not 0."""
    deadline = time.monotonic() + seconds
    while (found := len(list(grid.get_node_ids()))) < nodes:
        if seconds and time.monotonic() > deadline:
            raise RunError(f"{found} of {nodes} nodes were there after {seconds:g} s; start the others, or lower nodes")
        time.sleep(_LOOK_SECONDS)


def _about(config: AppConfig) -> Mapping[str, Any]:
    """Return what a run that goes on must share with its first part, beside what every run of the library must."""
    keys = (
        "app",
        "initial",
        "participation",
        "train-config",
        "separate-config",
        "evaluate-config",
        "run-config",
        "seed",
    )
    mapping = config.to_mapping()
    return {key: mapping[key] for key in keys}
