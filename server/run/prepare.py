"""What a pass of training needs, made once: runs whose settings are complete, the open data and the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Shards
from perennial.common.data.source import open_shards, resolved
from perennial.common.task.learning_task import Task
from perennial.common.task.ready import build, open_task
from perennial.server.run.folder import RunFolder
from perennial.server.strategies.own.ways import way_of


@dataclass(frozen=True)
class Run:
    """A configuration and the folder that its results go to."""

    config: RunConfig
    folder: RunFolder


@dataclass(frozen=True)
class Pass:
    """Runs that share their training, and what it needs: the open data, the task, the network with initial weights."""

    runs: tuple[Run, ...]
    shards: Shards
    network: nn.Module
    task: Task

    @property
    def config(self) -> RunConfig:
        """The first run's: it trains for all."""
        return self.runs[0].config

    @property
    def folder(self) -> RunFolder:
        """The first run's: it keeps the checkpoint of the pass."""
        return self.runs[0].folder


def prepare(runs: Sequence[Run]) -> Pass:
    """Return the pass of ``runs``, which differ at most in how they read the chains, with all that its data decides.

    Data are opened and the network is built here and nowhere else. Bad input is found here, before anything is written.
    """
    for run in runs:
        way_of(run.config.strategy)
    shards = open_shards(runs[0].config)
    runs = tuple(replace(run, config=resolved(run.config, shards)) for run in runs)
    config = runs[0].config
    task = open_task(config.task)
    network = build(task, shards.signature, config.model, config.seed)
    names = schedule_of(config).names
    if len(names) != shards.blocks:
        raise InputError(
            f"the clock names {len(names)} blocks ({', '.join(names)}), the data has {shards.blocks}; set blocks to "
            f"{len(names)}, or cut the data into so many"
        )
    return Pass(runs, shards, network, task)
