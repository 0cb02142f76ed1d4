"""``flower-predict serve``: a run's predictors behind an address, until Ctrl-C."""

from __future__ import annotations

import argparse
import re
import secrets
from importlib.metadata import version
from pathlib import Path

import torch

from perennial.common.command import console
from perennial.common.command.address import check_insecure, check_pair, is_loopback, readable
from perennial.common.command.console import say
from perennial.common.command.errors import InputError
from perennial.server.link.listener import Listener
from perennial.server.predict.loading import run_folder
from perennial.server.predict.serving.bounds import Bounds
from perennial.server.predict.serving.cold_routes import cold_routes
from perennial.server.predict.serving.front import Front
from perennial.server.predict.serving.infer import Infer
from perennial.server.predict.serving.measures import Measures
from perennial.server.predict.serving.shelf import Shelf

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LEAST_TOKEN = 16


def serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal; return what a shell expects of a command that a signal ended."""
    folder, name = run_folder(arguments.run), _name(arguments)
    token = _token(arguments)
    _check(arguments)
    torch.set_num_threads(arguments.threads)
    signals = console.Signals("stopping: requests under way are answered")
    app, shelf = application(folder, name, token, bounds_of(arguments))
    shelf.look()
    listener = Listener(app, arguments.host, arguments.port, cert=arguments.tls_cert, key=arguments.tls_key)
    listener.start()
    scheme = "https" if arguments.tls_cert else "http"
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    current = shelf.current
    serves = f"version {current.version.number}" if current else "no version yet; the first one is waited for"
    say(f"serving {folder} at {scheme}://{host}:{listener.port}/v2/models/{name} ({serves})")
    signals.stop.wait()
    listener.stop()
    return signals.exit_code()


def application(folder: Path, name: str, token: str | None, bounds: Bounds) -> tuple[Front, Shelf]:
    """Return the ASGI application that serves a run's folder, and its shelf."""
    shelf = Shelf(folder)
    measures = Measures(shelf)
    infer = Infer(name, shelf, measures, bounds)
    return Front(infer, cold_routes(name, shelf, measures, version("perennial-fl")), shelf, token), shelf


def bounds_of(arguments: argparse.Namespace) -> Bounds:
    """Return the bounds that the flags say."""
    for flag in ("max_examples", "max_body", "max_requests", "threads"):
        if getattr(arguments, flag) < 1:
            raise InputError(f"--{flag.replace('_', '-')} must be at least 1, got {getattr(arguments, flag)}")
    return Bounds(arguments.max_examples, arguments.max_body, arguments.max_requests)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what would be open, or readable on the way, by mistake."""
    if not 0 <= arguments.port < 2**16:
        raise InputError(f"--port must be in [0, 65536), got {arguments.port}")
    if arguments.tls_cert and arguments.tls_key:
        return check_pair(arguments.tls_cert, arguments.tls_key)
    if arguments.tls_cert or arguments.tls_key:
        raise InputError("--tls-cert and --tls-key belong together; give both")
    if not is_loopback(arguments.host) and not arguments.insecure_anywhere:
        raise InputError(
            f"{arguments.host} is not loopback: give --tls-cert and --tls-key (deploy/certificates.sh makes them), or "
            "--insecure-anywhere behind a proxy that has TLS"
        )
    if arguments.insecure_anywhere:
        say(f"flower-predict: {check_insecure(arguments.host, anywhere=True)}")
    return None


def _name(arguments: argparse.Namespace) -> str:
    name: str = arguments.name or arguments.run.absolute().name
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r} cannot stand in an address; give --name of letters, digits, dots, - and _")
    return name


def _token(arguments: argparse.Namespace) -> str | None:
    if arguments.token_file is None:
        if not is_loopback(arguments.host):
            raise InputError(f"{arguments.host} is not loopback: give --token-file, a file with a secret, such as "
                             f"{secrets.token_urlsafe(24)}")  # fmt: skip
        return None
    try:
        token = readable(arguments.token_file, "--token-file").read_text("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < _LEAST_TOKEN or not token.isprintable() or " " in token:
        raise InputError(f"--token-file {arguments.token_file} must hold one token of at least {_LEAST_TOKEN} "
                         "characters without spaces")  # fmt: skip
    return token
