"""One pass of training, for one run or several that share its chains: the strategy's loop, and what it leaves."""

from __future__ import annotations

import logging
from typing import Any

from flwr.serverapp import Grid

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Schedule
from perennial.common.task import models
from perennial.common.wire.arrays import encode
from perennial.common.wire.layout import Layout
from perennial.server.cohort.roster import Roster
from perennial.server.run.checkpoint import RunCheckpoint, usable_state
from perennial.server.run.evaluate import Evaluator, Right, TorchRight
from perennial.server.run.pass_folders import PassFolders, Progress
from perennial.server.run.prepare import Pass
from perennial.server.strategies.own.ways import assemble

LOG = logging.getLogger("perennial")


def train(
    prepared: Pass,
    grid: Grid,
    *,
    nodes: int,
    resume: bool = False,
    eager: bool = True,
    progress: Progress | None = None,
    right: Right | None = None,
) -> None:
    """Train once for all runs of a pass, and write their results; the caller holds their folders.

    nodes: to wait for before the first round. eager: checkpoint every round where checkpoint-every is auto.
    right: tells which guesses of a model are right; None: by torch.
    """
    config, network = prepared.config, prepared.network
    if config.fine_tune_steps and right is None:
        raise InputError(
            "fine-tune-steps is for flower-simulation: a server has no data of the clients to fine-tune on"
        )
    folders = PassFolders(prepared, eager=eager, progress=progress)
    saved = folders.find() if resume else None
    whole = [run.folder.is_whole() for run in prepared.runs] if saved else []
    if whole and all(whole):
        LOG.info("%s is done", prepared.folder.path)
        return
    arrays = models.arrays_of(network)
    layout = Layout.of(arrays)
    schedule, roster = _schedule(config, saved), Roster(config, prepared.shards.blocks)
    training = assemble([run.config for run in prepared.runs], schedule, layout, roster)
    evaluator = Evaluator(right or TorchRight(network, layout, prepared.task), prepared.shards, layout)
    try:
        folders.start(arrays)
        folders.attach(schedule, roster, evaluator, training.readers)
        roster.gather(grid, nodes)
        _say_what_is_averaged(config, roster)
        initial = encode(layout.flatten(arrays), layout)
        training.strategy.start(grid, initial, timeout=config.round_timeout, run_dir=folders)
    finally:
        folders.close()


def _schedule(config: RunConfig, saved: RunCheckpoint | None) -> Schedule:
    if saved is None:
        return schedule_of(config)
    with usable_state("the checkpoint"):
        state: dict[str, Any] = saved.tree["strategy"]
        return schedule_of(config, started=state["started"] or "", done=saved.server_round)


def _say_what_is_averaged(config: RunConfig, roster: Roster) -> None:
    if config.aggregation != "mean" and roster.largest() > 1:
        LOG.warning("aggregation %s is over nodes, each already the mean of up to %d clients: one bad client spoils "
                    "its whole node; for a %s over clients, host one client on each node",
                    config.aggregation, roster.largest(), config.aggregation)  # fmt: skip
