"""``flower-predict``: what a run has published, and what it predicts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from perennial.common.command import console, extras
from perennial.common.command.errors import InputError
from perennial.server.predict.loading import Predictor, load_predictor
from perennial.server.predict.serving.bounds import Bounds
from perennial.server.predict.showing import show

_DESCRIPTION = """\
Use the predictors that a run has published. RUN is a run's folder, or the folder that a device keeps by
`flower-client --predictors`. If the run has a clock, the block is that of the present time, or of --at TIME. A run by
rounds has no clock and needs --block NAME."""
_EXAMPLES = """\
examples:
  flower-predict show runs/demo                                  blocks, scores and versions
  flower-predict run runs/demo --input day.csv --block day       one line of outputs for each line of day.csv
  flower-predict run runs/demo --input x.npz --at 2026-03-28T22:00+01:00
  flower-predict eval runs/demo --data shards                    scores on a folder of shards
  flower-predict export runs/demo --format onnx                  a file for each block, checked against the run
  flower-predict serve runs/demo                                 Open Inference Protocol on http://127.0.0.1:8080

Errors are one line, and the exit code is 2. docs/predict.md has more."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 done, 1 failed, 2 bad usage, 128 + n ended by signal n."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    parsed = parser().parse_args(arguments)
    interrupted = "" if parsed.command == "serve" else "nothing is left half-written"
    return console.run(lambda: _main(parsed), "flower-predict", interrupted=interrupted)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    found = argparse.ArgumentParser(
        prog="flower-predict", description=_DESCRIPTION, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _command(commands, "show", "show blocks, scores, sizes, when each was last trained, and the versions that are kept")
    run = _command(commands, "run", "predict for the examples of a file")
    run.add_argument("--input", type=Path, required=True, metavar="FILE",
                     help=".npz with the inputs by name (x, or x0, x1, …), or .csv with the numbers of one example in "
                     "each line, in the order of the input's shape; a first line of names is passed over")  # fmt: skip
    run.add_argument("--output", type=Path, metavar="FILE", help=".npz or .csv to write to (default: CSV, printed)")
    _choice(run)
    judge = _command(commands, "eval", "score each block's predictor on the block's examples in a folder of shards: on "
                     "test/ if it has one, otherwise on what its clients hold")  # fmt: skip
    judge.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder of shards")
    export = _command(commands, "export", "write each block's network as a file for other programs, and check that it "
                      "predicts as the run does, to 1e-5")  # fmt: skip
    export.add_argument("--format", choices=("torch-export", "onnx"), required=True, help="torch.export's, or ONNX")
    export.add_argument("--output", type=Path, metavar="DIR", help="folder to write to (default: RUN/export)")
    serve = _command(commands, "serve", "answer requests of the Open Inference Protocol, version 2, by HTTP; new "
                     "versions are taken up while it runs")  # fmt: skip
    _serve_flags(serve)
    return found


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of the run, or of a device")
    if name != "serve":
        parser.add_argument("--version", type=int, metavar="N", help="version (default: the newest that is whole)")
    return parser


def _choice(parser: argparse.ArgumentParser) -> None:
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--at", metavar="TIME", help="a time with its zone, as 2026-03-28T12:00+01:00 (default: now)")
    choice.add_argument("--block", metavar="NAME", help="the block by name or number, instead of a time")


def _serve_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address")
    group.add_argument("--name", help="the model's name in the addresses (default: the name of RUN's folder)")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    group.add_argument("--port", type=int, default=8080, help="port to listen on; 0: any (default: 8080)")
    group.add_argument("--token-file", type=Path, metavar="FILE", help="a file with the token that requests must bring "
                       "as `authorization: Bearer TOKEN`; needed on any address but loopback")  # fmt: skip
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="the server's certificate (PEM)")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's private key (PEM)")
    group.add_argument("--insecure-anywhere", action="store_true", help="no TLS on any address, for a proxy in front "
                       "that has it; the token is needed all the same")  # fmt: skip
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument("--threads", type=int, default=1, metavar="N", help="cores for the network (default: 1)")
    for flag, default, what in (
        ("--max-examples", Bounds.examples, "examples of a request"),
        ("--max-body", Bounds.body, "bytes of a request's body"),
        ("--max-requests", Bounds.requests, "requests that are read at the same time"),
    ):
        bounds.add_argument(flag, type=int, default=default, metavar="N", help=f"{what} (default: {default})")


def _main(arguments: argparse.Namespace) -> int:
    console.log_to_console(verbose=False)
    if arguments.command == "show":
        return show(arguments.run, arguments.version)
    extras.need("app")
    if arguments.command == "serve":
        extras.need("serve")
        from perennial.server.predict.serving.serve_command import serve

        return serve(arguments)
    if arguments.command == "run":
        from perennial.server.predict.asking import ask

        return ask(_chosen(arguments), arguments.input, arguments.output)
    if arguments.command == "eval":
        from perennial.server.predict.scoring import score

        return score(arguments.run, arguments.version, arguments.data)
    if arguments.format == "onnx":
        extras.need("onnx")
    from perennial.server.predict.exporting import export

    return export(arguments.run, arguments.version, arguments.format, arguments.output)


def _chosen(arguments: argparse.Namespace) -> Predictor:
    """Return the predictor that --at, --block and --version name."""
    at = None
    if arguments.at is not None:
        try:
            at = datetime.fromisoformat(arguments.at)
        except ValueError as error:
            wanted = "a time with its zone, as 2026-03-28T12:00+01:00"
            raise InputError(f"--at must be {wanted}, got {arguments.at!r}") from error
    return load_predictor(arguments.run, at=at, block=arguments.block, version=arguments.version)


if __name__ == "__main__":
    raise SystemExit(main())
