"""`flower-simulation`: run experiment files, and cut data sets into folders of shards."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from common.config import RunConfig, flags, key_of
from common.errors import InputError, RunError
from common.logs import set_up_logging


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 the run failed, 2 bad usage or input, 130 interrupted."""
    options = _parser().parse_args(arguments)
    set_up_logging(options.verbose)
    # Models named package.module:factory may lie beside the experiment file.
    sys.path.append(os.getcwd())
    try:
        options.command(options)
    except (InputError, RunError) as error:
        if options.verbose:
            traceback.print_exc()
        print(f"flower-simulation: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        print("\nflower-simulation: interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


def _run(options: argparse.Namespace) -> None:
    from simulation import report, results, table
    from simulation.experiment import load
    from simulation.run import run_experiment

    experiment = load(options.file, options.set)
    folders = run_experiment(
        experiment, resume=options.resume, overwrite=options.overwrite, verbose=options.verbose
    )
    runs = [results.read(folder) for folder in folders]
    page = report.write(experiment.output, runs, experiment.title)
    table.show(runs)
    print(f"report: {page}")


def _shards(options: argparse.Namespace) -> None:
    from common import shards
    from common.source import open_shards

    config = RunConfig.from_mapping({key: value for key, value in vars(options).items() if key in _SHARD_KEYS})
    source = open_shards(config)
    groups = max(1, options.split)
    if groups > len(source.clients):
        raise InputError(f"--split must be at most the {len(source.clients)} clients, got {groups}")
    for place in range(groups):
        folder = options.output if groups == 1 else options.output / f"node-{place}"
        shards.write(folder, source, source.clients[place::groups], with_test=groups == 1)
    if groups > 1:
        shards.write(options.output / "server", source, source.clients[:0], with_test=True)
    print(f"{len(source.clients)} clients, {source.blocks} blocks in {options.output}")


_SHARD_KEYS = ("data", "blocks", "clients", "labels-per-block", "client-skew", "shuffled", "seed")


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
        description="Run an experiment file: flat keys; a list as a value is a sweep. Writes metrics, predictors and report.",
        epilog="keys:\n" + "\n".join(_key_help()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("file", type=Path, metavar="FILE.yaml")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key; may be repeated")
    again = run.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on from checkpoints, and skip runs that are done")
    again.add_argument("--overwrite", action="store_true", help="start anew where the output folder holds other runs")
    run.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    run.set_defaults(command=_run)
    shards = commands.add_parser(
        "shards",
        help="cut a data set into a folder of shards",
        description="Cut a data set into a folder of shards, for devices or for a simulation (data: DIR).",
    )
    shards.add_argument("output", type=Path, metavar="DIR")
    shards.add_argument("--split", type=int, default=1, metavar="N",
                        help="write N folders DIR/node-K, one a node, and DIR/server with the test sets")  # fmt: skip
    for item in flags():
        if key_of(item) in _SHARD_KEYS:
            _add_flag(shards, item)
    shards.add_argument("--verbose", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    shards.set_defaults(command=_shards)
    return parser


def _key_help() -> list[str]:
    return [f"  {key_of(item):22} {_default(item):14} {item.metadata['doc']}" for item in flags()]


def _default(item: Field[Any]) -> str:
    return str(RunConfig().to_mapping()[key_of(item)])


def _add_flag(parser: argparse.ArgumentParser, item: Field[Any]) -> None:
    """Offer a key of the configuration as a flag; its value is checked by RunConfig, as everywhere."""
    key, default = key_of(item), item.default
    kind = argparse.BooleanOptionalAction if isinstance(default, bool) else "store"
    convert = {} if isinstance(default, bool) else {"type": type(default), "metavar": type(default).__name__.upper()}
    parser.add_argument(f"--{key}", dest=key, default=default, action=kind, help=item.metadata["doc"], **convert)


if __name__ == "__main__":
    sys.exit(main())
