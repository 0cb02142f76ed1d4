"""The app of a run as Flower bundles it, for Flower's own processes: our package, and a user's own app beside it."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr.cli.build import build_fab_from_disk

import perennial
from perennial.common.command.app_config import APP_RUN, AppConfig
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError

_ROOMS = ("common", "server", "client")
# What Flower takes into a bundle.
_SUFFIXES = (".py", ".toml", ".md", ".yaml", ".yml", ".json")
_MOST_FILES = 2000
# A module beside the user's, for nodes that get both chains in one message.
_BOTH = "perennial_both_chains"


def bundled(config: RunConfig | AppConfig, folder: Path) -> bytes:
    """Return the bundle of a run's app, which is staged in ``folder``."""
    stage(folder, config)
    try:
        with warnings.catch_warnings():
            # Flower uses a name of another package that will go; its user can do nothing about that.
            warnings.simplefilter("ignore", DeprecationWarning)
            return build_fab_from_disk(folder)
    except ValueError as error:
        raise InputError(f"Flower cannot bundle the app in {folder}: {' '.join(str(error).split())}") from error


def stage(folder: Path, config: RunConfig | AppConfig) -> None:
    """Write the app of a run: the package, a user's own files, and a pyproject whose run-config is this run's."""
    shutil.rmtree(folder, ignore_errors=True)
    _copy_perennial(folder / "perennial")
    if isinstance(config, AppConfig):
        _copy_user(Path.cwd(), folder, Path(config.output).absolute())
        values, client = _app_values(config), config.app
        if config.one_message:
            client = f"{_BOTH}:app"
            (folder / f"{_BOTH}.py").write_text(
                f"from perennial.client.own_app import own_app\n\napp = own_app({config.app!r})\n"
            )
    else:
        values, client = _own_values(config.to_mapping()), "perennial.client_app:app"
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()]
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "perennial"\nversion = "0.1.0"\n[tool.flwr.app]\npublisher = "perennial"\n'
        f'[tool.flwr.app.components]\nserverapp = "perennial.server_app:app"\nclientapp = "{client}"\n'
        "[tool.flwr.app.config]\n" + "\n".join(lines) + "\n"
    )


def _own_values(mapping: Mapping[str, object]) -> dict[str, object]:
    values = {**mapping, "output": str(Path(str(mapping["output"])).absolute())}
    if Path(str(mapping["data"])).exists():
        values["data"] = str(Path(str(mapping["data"])).absolute())
    return values


def _app_values(config: AppConfig) -> dict[str, object]:
    run = {**config.to_mapping(), "output": str(Path(config.output).absolute())}
    return {**dict(config.run_config), APP_RUN: json.dumps(run)}


def _copy_perennial(to: Path) -> None:
    # A checkout has the rooms beside perennial/, an installed package has them inside it; so has the app.
    front, rooms = Path(perennial.__file__).resolve().parent, Path(__file__).resolve().parents[2]
    for room in _ROOMS:
        shutil.copytree(rooms / room, to / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in front.glob("*.py"):
        shutil.copy(file, to)


def _copy_user(here: Path, to: Path, output: Path) -> None:
    """Copy what may be of a user's own app from the working folder: what Flower would bundle there."""
    for count, file in enumerate(_files(here, (to, output))):
        if count == _MOST_FILES:
            raise InputError(f"{here} has more than {_MOST_FILES} files that may be of your app; start in its folder")
        place = to / file.relative_to(here)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def _files(folder: Path, without: tuple[Path, ...]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        at = Path(place)
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and at / name not in without
            and not (at / name / "pyvenv.cfg").exists()
            # Flower's own state is kept beside what is staged.
            and at / name != without[0].parent
        ]
        yield from (
            at / name
            for name in names
            if name == ".gitignore" or (name.endswith(_SUFFIXES) and (at / name) != folder / "pyproject.toml")
        )
