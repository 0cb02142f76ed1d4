"""Experiments with a user's own app: their runs one after the other on one Ray, skipping what is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from perennial.common.command import places
from perennial.common.command.app_config import AppConfig
from perennial.common.command.naming import look_here_first
from perennial.server.run.app_training import initial_arrays, is_done, train_app
from perennial.server.run.folder import RunFolder
from perennial.server.run.library_folder import discard_run
from perennial.simulation.experiment import DescribedRuns, named_runs

Runs = Sequence[tuple[AppConfig, Path]]


def run_apps(described: DescribedRuns, *, resume: bool, overwrite: bool, verbose: bool) -> list[Path]:
    """Run what a file describes and return the runs' folders, in its order."""
    look_here_first()
    runs = [(config, described.output / name) for name, config in named_runs(described, AppConfig.from_mapping)]
    # What is wrong with a user's modules is said before Ray starts.
    for name in {config.initial for config, _ in runs}:
        initial_arrays(name)
    for app in {config.app for config, _ in runs}:
        _check_app(app)
    waiting = [(config, folder) for config, folder in runs if not (resume and is_done(config, folder))]
    for _, folder in waiting:
        if overwrite:
            discard_run(folder)
        elif not resume:
            RunFolder(folder).refuse_to_lose("--resume goes on with it, --overwrite starts anew")
    if waiting:
        places.folder(described.output)
        _run(waiting, verbose=verbose)
    return [folder for _, folder in runs]


def _run(runs: Runs, *, verbose: bool) -> None:
    from perennial.simulation.cluster import connected
    from perennial.simulation.ray_grid import RayGrid

    with connected(verbose=verbose) as cpus:
        for app, group in groupby(runs, key=lambda run: run[0].app):
            with closing(RayGrid(cpus, app)) as grid:
                for config, folder in group:
                    if len(runs) > 1:
                        print(f"run {folder.name}", flush=True)
                    nodes = config.nodes or config.clients
                    grid.begin(nodes, dict(config.run_config))
                    train_app(config, folder, grid, nodes=nodes)


def _check_app(name: str) -> None:
    from perennial.client.own_app import own_app

    own_app(name)
