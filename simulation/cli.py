"""`flower-simulation`: run experiment files, and cut data sets into folders of shards."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from perennial.common.command import console, extras
from perennial.common.command.app_config import app_flags
from perennial.common.command.config import RunConfig, flags
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import key_of
from perennial.server.report.web import beside


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 the run failed, 2 bad usage or input, 130 or 143 interrupted."""
    options = _parser().parse_args(arguments)
    console.log_to_console(verbose=options.verbose)
    # Models named package.module:factory may lie beside the experiment file.
    sys.path.append(os.getcwd())
    return console.run(
        lambda: options.command(options),
        "flower-simulation",
        verbose=options.verbose,
        interrupted="--resume goes on from the last checkpoint",
    )


def _run(options: argparse.Namespace) -> int:
    from perennial.simulation.experiment import describe, experiment_of

    described, again = describe(options.file, options.set), {"resume": options.resume, "overwrite": options.overwrite}
    extras.need("ray" if described.of_an_app else "simulation")
    from perennial.common.command import places
    from perennial.server.report import html, reading, table
    from perennial.simulation.experiment import folders_of

    with (
        places.writing_to(described.output),
        beside.page_beside(options.page, folders_of(described), described.title, anew=not options.resume),
    ):
        if described.of_an_app:
            from perennial.simulation.app_runs import run_apps

            folders = run_apps(described, **again, verbose=options.verbose)
        else:
            from perennial.simulation.passes import run_experiment

            folders = run_experiment(experiment_of(described), **again, verbose=options.verbose)
        runs = [reading.read(folder) for folder in folders]
        page = html.write(described.output, runs, described.title)
    table.show(runs)
    print(f"report: {page}")
    return 0


def _shards(options: argparse.Namespace) -> int:
    from perennial.common.command import places
    from perennial.common.data import shards
    from perennial.common.data.source import open_shards

    config = RunConfig.from_mapping({key: value for key, value in vars(options).items() if key in _SHARD_KEYS})
    groups: int = options.split
    if groups < 1:
        raise InputError(f"--split must be at least 1, got {groups}")
    source = open_shards(config)
    if groups > len(source.clients):
        raise InputError(f"--split must be at most the {len(source.clients)} clients, got {groups}")
    places.folder(options.output)
    if any(options.output.iterdir()):
        raise InputError(f"{options.output} is not empty, and old shards would mix with new; choose another folder")
    for place in range(groups):
        folder = options.output if groups == 1 else options.output / f"node-{place}"
        shards.write(folder, source, source.clients[place::groups], with_test=groups == 1)
    if groups > 1:
        shards.write(options.output / "server", source, source.clients[:0], with_test=True)
    print(f"{len(source.clients)} clients, {source.blocks} blocks in {options.output}")
    return 0


_SHARD_KEYS = ("data", "blocks", "clients", "labels-per-block", "block-skew", "label-shift", "client-skew", "shuffled",
               "seed")  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flower-simulation",
        description="Simulate federated learning on block-cyclic data with Flower and Ray.",
        epilog="Example: flower-simulation run experiment.yaml --set strategy=mc-psgd --set cycles=3",
    )
    parser.add_argument("--verbose", action="store_true", help="show Flower's and Ray's own messages, and tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run an experiment file",
        description="Run an experiment file; a list as a value is a sweep. Writes metrics, predictors and a report.",
        epilog="keys:\n"
        + "\n".join(_key_help(flags()))
        + "\n\nkeys of a run of your own Flower app (docs/library.md), beside those above that it shares:\n"
        + "\n".join(_key_help(app_flags())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("file", type=Path, metavar="FILE.yaml")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key; may be repeated")
    again = run.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on from checkpoints, and skip runs that are done")
    again.add_argument("--overwrite", action="store_true", help="start anew if the output folder holds other runs")
    run.add_argument("--page", metavar="[HOST:]PORT", help=beside.HELP)
    run.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    run.set_defaults(command=_run)
    shards = commands.add_parser(
        "shards",
        help="cut a data set into a folder of shards",
        description="Cut a data set into a folder of shards, for devices or for a simulation (data: DIR).",
    )
    shards.add_argument("output", type=Path, metavar="DIR")
    shards.add_argument("--split", type=int, default=1, metavar="N",
                        help="write DIR/node-K for each of N nodes, and DIR/server with the test sets")  # fmt: skip
    for item in flags():
        if key_of(item) in _SHARD_KEYS:
            _add_flag(shards, item)
    shards.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    shards.set_defaults(command=_shards)
    return parser


def _key_help(items: Sequence[Field[Any]]) -> list[str]:
    return [f"  {key_of(item):22} {_default(item):14} {item.metadata['doc']}{_choices(item)}" for item in items]


def _choices(item: Field[Any]) -> str:
    choices = item.metadata.get("choices")
    own = ", or package.module:name" if item.metadata.get("named") else ""
    return f" (one of {', '.join(choices)}{own})" if choices else ""


def _default(item: Field[Any]) -> str:
    return str(RunConfig().to_mapping().get(key_of(item), item.default or ""))


def _add_flag(parser: argparse.ArgumentParser, item: Field[Any]) -> None:
    """Offer a key of the configuration as a flag; its value is checked by RunConfig, as everywhere."""
    key, default, text = key_of(item), item.default, item.metadata["doc"]
    if isinstance(default, bool):
        parser.add_argument(f"--{key}", dest=key, default=default, action=argparse.BooleanOptionalAction, help=text)
    else:
        kind: type = type(default)
        shown = f"{text} (default: {_default(item)})"
        parser.add_argument(f"--{key}", dest=key, default=default, type=kind, metavar=kind.__name__.upper(), help=shown)


if __name__ == "__main__":
    sys.exit(main())
