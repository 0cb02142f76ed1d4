"""Running an experiment: its passes one after the other on one Ray, skipping what is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from perennial.client.engines import choose
from perennial.client.engines.native import NativeEngine
from perennial.client.engines.told_native import ToldNativeEngine
from perennial.client.engines.trial import load_of
from perennial.common.command import places
from perennial.common.command.config import ENGINES
from perennial.common.command.errors import InputError
from perennial.common.command.naming import is_name
from perennial.common.command.typed_keys import AUTO
from perennial.common.data.checking import check_data
from perennial.common.task import ready
from perennial.common.task.models import arrays_of
from perennial.common.wire.layout import Layout
from perennial.server.run.checkpoint import Checkpoints, RunCheckpoint
from perennial.server.run.evaluate import Right, TorchRight
from perennial.server.run.folder import RunFolder
from perennial.server.run.pass_folders import check_same_config, held
from perennial.server.run.prepare import Pass, Run, prepare
from perennial.server.run.progress import TerminalProgress
from perennial.server.run.training import train
from perennial.simulation.experiment import Experiment
from perennial.simulation.fine_tuning import TunedRight


def run_experiment(experiment: Experiment, *, resume: bool, overwrite: bool, verbose: bool) -> list[Path]:
    """Run all passes and return the runs' folders, in the order of the experiment."""
    passes = [
        prepare([Run(named.config, RunFolder(experiment.output / named.name)) for named in one])
        for one in experiment.passes
    ]
    for one in passes:
        if one.config.nodes > one.config.clients:
            raise InputError(f"nodes must be at most the {one.config.clients} clients, got {one.config.nodes}")
    passes = [with_engine(one, anew=overwrite) for one in passes]
    waiting = [left for one in passes if (left := _unfinished(one) if resume else one).runs]
    if not overwrite:
        for one in waiting:
            _refuse_to_lose(one.runs, resume=resume)
    if waiting:
        check_data(one.shards for one in waiting)
        places.folder(experiment.output)
        with held([run for one in waiting for run in one.runs]):
            _run_passes(waiting, resume=resume, verbose=verbose)
    return [run.folder.path for one in passes for run in one.runs]


def _run_passes(passes: Sequence[Pass], *, resume: bool, verbose: bool) -> None:
    from perennial.simulation.cluster import connected
    from perennial.simulation.ray_grid import RayGrid

    with connected(verbose=verbose) as cpus, closing(RayGrid()) as grid:
        for number, one in enumerate(passes, 1):
            runs, config = one.runs, one.config
            nodes = config.nodes or min(cpus, config.clients)
            several = len(passes) > 1
            names = [run.folder.path.name if several or len(runs) > 1 else run.config.strategy for run in runs]
            if several:
                print(f"pass {number} of {len(passes)}: {', '.join(names)}", flush=True)
            grid.begin(nodes, config.to_mapping())
            progress, right = TerminalProgress(names), _right(one)
            train(one, grid, nodes=nodes, resume=resume, eager=False, progress=progress, right=right)


def with_engine(one: Pass, *, anew: bool) -> Pass:
    """Return the pass with the engine of all its workers, which is kept with the runs: each worker might choose other.

    A run that is there keeps its engine, unless it begins ``anew``: timing must not change a bit of it.
    """
    config = one.config
    if is_name(config.engine):
        # One of a user's own is tried before anything is written.
        choose(config.engine, one.network, one.shards.signature, task=one.task)
    if config.engine != AUTO:
        return one
    kept = {run.folder.config().get("engine") for run in one.runs} & set(ENGINES)
    if len(kept) == 1 and not anew:
        name = str(kept.pop())
    else:
        nodes = config.nodes or min(os.cpu_count() or 1, config.clients)
        hosted = one.shards.clients[::nodes]
        # What is quick on a worker's GPU, this process without one cannot try.
        gpu = config.gpus_per_worker > 0
        some = hosted[: max(1, round(config.participation * len(hosted)))]
        load = None if gpu else load_of(one.shards, some, config)
        name = choose(AUTO, one.network, one.shards.signature, task=one.task, load=load, gpu=gpu).name
    return replace(one, runs=tuple(replace(run, config=replace(run.config, engine=name)) for run in one.runs))


def _right(one: Pass) -> Right:
    """Return how predictors are judged: by the native engine if the workers train with it, else by torch."""
    task, gpu = one.task, one.config.gpus_per_worker > 0
    engine = choose(one.config.engine, one.network, one.shards.signature, task=task, gpu=gpu)
    right: Right = TorchRight(one.network, Layout.of(arrays_of(one.network)), task)
    if isinstance(engine, NativeEngine | ToldNativeEngine) and task.score.each is ready.right:
        right = engine.right
    return TunedRight(right, one.shards, engine, one.config) if one.config.fine_tune_steps else right


def _unfinished(one: Pass) -> Pass:
    """Return what is left of a pass; where runs were added to one that is done, those alone."""
    left = tuple(run for run in one.runs if not _is_done(run))
    saved = _latest(one.folder) if left else None
    # A pass that was broken off while it wrote its results goes on as a whole.
    return one if saved and len(saved.metrics) == len(one.runs) else replace(one, runs=left)


def _is_done(run: Run) -> bool:
    return run.folder.config() == run.config.to_mapping() and run.folder.is_whole()


def _latest(folder: RunFolder) -> RunCheckpoint | None:
    return Checkpoints(folder.checkpoints).latest()


def _refuse_to_lose(runs: Sequence[Run], *, resume: bool) -> None:
    """Refuse to start over folders whose content would be lost by it; a finished run may be repeated."""
    leads = any(runs[0].folder.checkpoints.glob("*.json"))
    for run in runs:
        found, path = run.folder.config(), run.folder.path
        if not found:
            continue
        if resume:
            check_same_config(found, run.config)
            # A pass has its checkpoint with its first run; this one was of another pass.
            if not leads and any(run.folder.checkpoints.glob("*.json")):
                raise InputError(
                    f"{path} was trained without {runs[0].folder.path.name}, and together they would start anew; "
                    "choose another output, or add --overwrite"
                )
        elif found != run.config.to_mapping():
            raise InputError(f"{path} holds a run of another configuration; choose another output, or add --overwrite")
        elif not run.folder.is_complete() and (saved := _latest(run.folder)) and saved.server_round:
            raise InputError(
                f"{path} holds an unfinished run, at round {saved.server_round}; "
                "--resume goes on with it, --overwrite starts anew"
            )
