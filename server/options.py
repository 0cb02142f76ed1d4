"""The command line of ``flower-server``: where to listen, whom to admit, and every key of a run as a flag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from perennial.common.command import unique_yaml
from perennial.common.command.app_config import APP, AppConfig, app_flags, with_block_names
from perennial.common.command.config import RunConfig, flags
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import AUTO, key_of
from perennial.server.report.web import beside

# A deployed run outlives absent devices: it waits instead of giving up, unless told otherwise; but not for stragglers.
# And its updates come from strangers' machines.
DEPLOYED: Mapping[str, object] = {"node-timeout": 0.0, "round-attempts": 0, "fair-time": 1.5, "max-update-norm": AUTO}
# What an experiment file may say beside the keys of a run.
_TITLE, _RUNS = "title", "runs"


def parser() -> argparse.ArgumentParser:
    """Return the parser; flags of the run are those of the experiment files."""
    parser = argparse.ArgumentParser(
        prog="flower-server",
        description="Serve a fleet of flower-clients and train with them. Ctrl-C stops after the last finished round; "
        "--resume goes on from there.",
        allow_abbrev=False,
    )
    link = parser.add_argument_group("server")
    link.add_argument("--config", type=Path, metavar="FILE", help="an experiment file; flags overrule it")
    link.add_argument("--state-dir", type=Path, default=Path("state"), metavar="DIR",
                      help="keeps nodes/*.pub, the keys that may connect, and run/ (default: state)")  # fmt: skip
    again = link.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on from the checkpoint in the output folder, if any")
    again.add_argument("--overwrite", action="store_true", help="start anew if the output folder holds a run")
    link.add_argument("--host", default=None, help="address to listen on (default: all, or loopback with --insecure)")
    link.add_argument("--port", type=int, default=8000, help="port to listen on; 0: any (default: 8000)")
    link.add_argument("--tls-cert", type=Path, metavar="FILE", help="the server's certificate (PEM)")
    link.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's private key (PEM)")
    link.add_argument("--tls-ca", type=Path, metavar="FILE", help="its CA; for --attach and the stock runtime")
    link.add_argument("--any-node", action="store_true", help="admit nodes without a key of nodes/*.pub")
    link.add_argument("--stock-nodes", action="store_true", help="serve stock flower-supernodes beside flower-clients")
    link.add_argument("--insecure", action="store_true", help="no TLS and no keys, on loopback only")
    link.add_argument("--insecure-anywhere", action="store_true", help="no TLS and no keys, on any address")
    link.add_argument("--attach", metavar="HOST:PORT", help="submit the run to a SuperLink that already runs")
    link.add_argument("--runtime", choices=("quick", "stock"), default="quick",
                      help="stock: Flower's own processes, with rounds of several seconds")  # fmt: skip
    link.add_argument("--page", metavar="[HOST:]PORT", help=beside.HELP)
    link.add_argument("--verbose", action="store_true", help="show Flower's own log")
    run = parser.add_argument_group("run (the keys of an experiment file)")
    for item in flags():
        default = DEPLOYED.get(key_of(item), item.default)
        text = f"{item.metadata['doc']} (default: {_shown(item.metadata, default)})".replace("%", "%%")
        run.add_argument(f"--{key_of(item)}", metavar="VALUE", help=text)
    own = parser.add_argument_group("run of your own Flower app (beside those above that mean the same)")
    for item in app_flags():
        own.add_argument(f"--{key_of(item)}", metavar="VALUE", help=item.metadata["doc"].replace("%", "%%"))
    return parser


def run_config(arguments: argparse.Namespace) -> RunConfig | AppConfig:
    """Return the run that file and flags describe; flags win. With ``app`` it is one of a user's own app."""
    values = _read_file(arguments.config)
    for item in [*flags(), *app_flags()]:
        text = getattr(arguments, item.name)
        if text is not None:
            values[key_of(item)] = text if isinstance(item.default, str) else _scalar(key_of(item), text)
    # Not all of what differs on a server is a key of a user's own app.
    kind = AppConfig if APP in values else RunConfig
    known = {key_of(item) for item in fields(kind)}
    values = with_block_names({key: value for key, value in DEPLOYED.items() if key in known} | values)
    for key, value in values.items():
        if isinstance(value, list):
            raise InputError(f"{key} is a list of {len(value)}, a server runs one at a time; choose one with --{key}")
    if not values.get("output"):
        values["output"] = str(arguments.state_dir / "run")
    return kind.from_mapping(values)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    return parser().parse_args(arguments)


def _read_file(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        content = unique_yaml.load(path.read_text())
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"--config {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"--config {path} must hold `key: value` lines")
    if _RUNS in content:
        raise InputError(f"--config {path} lists several runs, a server runs one at a time; copy the one you mean")
    return {str(key): value for key, value in content.items() if key != _TITLE}


def _scalar(key: str, text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--{key}: {text!r} is not a value") from error


def _shown(metadata: Mapping[str, Any], default: object) -> str:
    if metadata.get("auto") is not None and default == metadata["auto"]:
        return "auto"
    return str(default).lower() if isinstance(default, bool) else f"{default}" if default != "" else "none"
