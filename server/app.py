"""The ServerApp: `flwr run .` on Flower's own runtimes, simulated or deployed."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from perennial.common.command.app_config import APP_RUN, AppConfig
from perennial.common.command.config import RunConfig
from perennial.common.data.checking import check_data
from perennial.server.link.eager_grid import EagerGrid
from perennial.server.run.app_training import train_app
from perennial.server.run.folder import RunFolder
from perennial.server.run.pass_folders import held
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.progress import TerminalProgress
from perennial.server.run.training import train

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the one configuration of the run-config; its folder is relative to the SuperLink's working directory."""
    if APP_RUN in context.run_config:
        return _app(grid, json.loads(str(context.run_config[APP_RUN])))
    config = RunConfig.from_mapping(context.run_config)
    folder = RunFolder(Path(config.output or f"runs/flower-{context.run_id}").absolute())
    folder.refuse_to_lose("keep it by another `output`, or remove it")
    prepared = prepare([Run(config, folder)])
    check_data([prepared.shards])
    with held(prepared.runs):
        train(prepared, EagerGrid(grid), nodes=config.nodes or 1, progress=TerminalProgress([config.strategy]))


def _app(grid: Grid, settings: dict[str, object]) -> None:
    """Run a user's own app, which lies in the bundle beside this package."""
    config = AppConfig.from_mapping(settings)
    train_app(config, Path(config.output), EagerGrid(grid), nodes=config.nodes or 1)
