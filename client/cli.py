"""``flower-client``: one device, or a gateway that hosts several clients, in the foreground."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perennial.common.command import console, extras, flower, places
from perennial.common.command.address import check_authority, check_insecure, parse_address, readable
from perennial.common.command.console import say
from perennial.common.command.errors import InputError
from perennial.common.command.naming import look_here_first

if TYPE_CHECKING:
    from flwr.app import UserConfig
    from flwr.clientapp import ClientApp

# Imports all of Flower's internals that the quick runtime's devices need.
_QUICK = "perennial.client.link.fleet_connection"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 stopped on request, 2 bad usage or bad shards."""
    # Flower reads these when it is imported.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    parsed = parser().parse_args(arguments)
    return console.run(lambda: _main(parsed), "flower-client")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flower-client",
        description="Train for a flower-server, on this device's shards or by your own app; reconnects for ever, until "
        "Ctrl-C.",
        allow_abbrev=False,
    )
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="the flower-server")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of shards; your own app needs none")
    parser.add_argument("--app", metavar="MODULE:NAME",
                        help="your own ClientApp, as package.module:app; the working folder comes first")  # fmt: skip
    parser.add_argument("--node-config", default="", metavar="'KEY=VALUE ...'",
                        help="what your app finds in context.node_config; put text in double quotes")  # fmt: skip
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="certificate (PEM) of the CA that signed the server's certificate"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="this node's private key (OpenSSH, ECDSA)")
    parser.add_argument("--threads", type=int, default=1, metavar="N",
                        help="cores over which a gateway spreads its clients (default: 1)")  # fmt: skip
    parser.add_argument("--predictors", type=Path, metavar="DIR",
                        help="keep the newest predictors of the run in DIR, for programs on this device that call "
                        "perennial.load_predictor(DIR)")  # fmt: skip
    parser.add_argument("--insecure", action="store_true", help="no TLS, on loopback only")
    parser.add_argument("--insecure-anywhere", action="store_true", help="no TLS, on any address")
    parser.add_argument("--runtime", choices=("quick", "stock"), default="quick",
                        help="stock: Flower's own processes, with rounds of several seconds")  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show Flower's own log")
    return parser


def _main(arguments: argparse.Namespace) -> int:
    console.log_to_console(verbose=arguments.verbose)
    if arguments.app is None:
        extras.need("app")
    node_config = _node_config(arguments)
    host, _ = parse_address(arguments.server)
    arguments.insecure |= arguments.insecure_anywhere
    _check_security(arguments, host)
    if arguments.threads < 1:
        raise InputError(f"--threads must be at least 1, got {arguments.threads}")
    app = _app(arguments)
    if arguments.runtime == "quick" and flower.use_stock(_QUICK, "flower-client"):
        arguments.runtime = "stock"
    if arguments.predictors and arguments.runtime == "stock":
        raise InputError("--predictors needs the quick runtime: a stock SuperLink offers no predictors")
    if arguments.runtime == "stock":
        _become_supernode(arguments, node_config)
    return _serve(arguments, app, node_config)


def _check_security(arguments: argparse.Namespace, host: str) -> None:
    if arguments.insecure:
        if arguments.ca or arguments.key:
            raise InputError("--insecure excludes --ca and --key: without TLS neither protects anything")
        say(f"flower-client: {check_insecure(host, anywhere=arguments.insecure_anywhere)}")
    elif arguments.ca is None:
        raise InputError("give --ca, the certificate of the server's CA, or --insecure to try it on this machine")
    else:
        check_authority(arguments.ca, "--ca")
    if arguments.key:
        readable(arguments.key, "--key")


def _check_shards(folder: Path) -> None:
    """Read every shard once: what is wrong with the data is said now, not in a round."""
    from perennial.common.data.shards import ShardFolder

    shards = ShardFolder(folder)
    if not shards.clients:
        raise InputError(f"{folder} holds no client: it is for a server; give a folder whose manifest lists clients")
    shards.check()
    say(f"{folder}: {len(shards.clients)} clients, {shards.blocks} blocks, examples {shards.signature}")


def _app(arguments: argparse.Namespace) -> ClientApp:
    """Return the app that answers orders, once its data, if that is of our own kind, have been read."""
    if arguments.app is not None:
        from perennial.client.own_app import own_app

        look_here_first()
        return own_app(arguments.app)
    if arguments.data is None:
        raise InputError("give --data, a folder of shards, or --app, a ClientApp of your own")
    if arguments.node_config:
        raise InputError("--node-config is for an app of your own: give --app, or leave it out")
    _check_shards(arguments.data)
    from perennial.client.app import app

    return app


def _node_config(arguments: argparse.Namespace) -> UserConfig:
    """Return what the app finds in ``context.node_config``."""
    data = {} if arguments.data is None else {"data": str(arguments.data.absolute())}
    try:
        # A number, true, false or text for each name, written as for Flower's own option: all on one line.
        given = tomllib.loads(re.sub(r"\s+(?=[\w-]+=)", "\n", arguments.node_config))
    except ValueError as error:
        raise InputError(f"--node-config {arguments.node_config!r} cannot be read: {error}") from error
    return {**data, "threads": arguments.threads, **given}


def _serve(arguments: argparse.Namespace, app: ClientApp, node_config: UserConfig) -> int:
    """Answer orders in this process, which has loaded all that it needs for it."""
    from perennial.client.kept_predictors import KeptPredictors
    from perennial.client.link.connect import connect
    from perennial.client.link.private_key import read_private_key
    from perennial.client.node import Node

    kept = KeptPredictors(places.folder(arguments.predictors), say) if arguments.predictors else None
    key = read_private_key(arguments.key) if arguments.key else None
    signals = console.Signals("stopping", interrupt=True)
    node = Node(
        lambda: connect(arguments.server, ca=arguments.ca, key=key),
        app,
        node_config,
        stop=signals.stop,
        say=say,
        keyed=key is not None,
        kept=kept,
    )
    with contextlib.suppress(KeyboardInterrupt):
        node.serve()
    return 0


def _become_supernode(arguments: argparse.Namespace, node_config: UserConfig) -> None:
    """Replace this process by Flower's own node."""
    line = [flower.command("flower-supernode"), "--superlink", arguments.server]
    line += ["--insecure"] if arguments.insecure else ["--root-certificates", str(arguments.ca)]
    line += ["--auth-supernode-private-key", str(arguments.key)] if arguments.key else []
    line += ["--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())]
    line += ["--port", str(flower.free_port())]
    os.execve(line[0], line, flower.environment())


if __name__ == "__main__":
    raise SystemExit(main())
