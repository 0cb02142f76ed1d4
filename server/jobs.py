"""What flower-server serves: a run of the project's own app, or one of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.serverapp import Grid

from perennial.common.command.app_config import AppConfig
from perennial.common.command.config import RunConfig
from perennial.common.command.naming import look_here_first

RunSettings = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Job:
    """folder: where the results go. told: what nodes see of the run. train: to the end of the run, by a grid."""

    folder: Path
    told: RunSettings
    train: Callable[[Grid], None]


def job_of(config: RunConfig | AppConfig, *, resume: bool, overwrite: bool) -> Job:
    """Return the run that a configuration describes; what is wrong with it is said now."""
    folder = Path(config.output).absolute()
    if isinstance(config, AppConfig):
        return _app_job(config, folder, overwrite=overwrite)
    return _own_job(config, folder, resume=resume)


def _own_job(config: RunConfig, folder: Path, *, resume: bool) -> Job:
    from perennial.common.data.checking import check_data
    from perennial.server.run.folder import RunFolder
    from perennial.server.run.pass_folders import held
    from perennial.server.run.prepare import Run, prepare
    from perennial.server.run.progress import TerminalProgress
    from perennial.server.run.training import train

    run = prepare([Run(config, RunFolder(folder))])
    check_data([run.shards])

    def trained(grid: Grid) -> None:
        progress = TerminalProgress([run.config.strategy])
        with held(run.runs):
            train(run, grid, nodes=run.config.nodes or 1, resume=resume, progress=progress)

    # Nodes see nothing of the run but its settings; where it is kept is the server's business.
    return Job(folder, {**run.config.to_mapping(), "output": ""}, trained)


def _app_job(config: AppConfig, folder: Path, *, overwrite: bool) -> Job:
    from perennial.server.run.app_training import initial_arrays, train_app
    from perennial.server.run.library_folder import discard_run

    look_here_first()
    initial_arrays(config.initial)

    def trained(grid: Grid) -> None:
        if overwrite:
            discard_run(folder)
        train_app(config, folder, grid, nodes=config.nodes or 1)

    return Job(folder, dict(config.run_config), trained)
