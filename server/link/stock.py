"""The stock way: flower-superlink behind a door of ours, and `flwr run`. Public commands of Flower only.

For a flwr that the quick runtime was not written for, and for ``--attach``. Rounds take several seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from perennial.common.command import console
from perennial.common.command.address import check_authority, check_insecure, parse_address
from perennial.common.command.app_config import AppConfig
from perennial.common.command.config import RunConfig
from perennial.common.command.console import say
from perennial.common.command.errors import InputError, RunError
from perennial.common.command.flower import command, end, environment, free_port
from perennial.server.link.bindings import OPTION
from perennial.server.link.bundle import stage
from perennial.server.link.forward import Forward
from perennial.server.link.gate import Gate
from perennial.server.link.listener import Listener
from perennial.server.run.folder import RunFolder
from perennial.server.run.library_folder import discard_run
from perennial.server.run.lock import hold

_CONNECTION = "perennial"
_START_SECONDS = 180.0
_PR_SET_PDEATHSIG = 1


def serve(config: RunConfig | AppConfig, arguments: argparse.Namespace) -> int:
    """Start a SuperLink on loopback and a door before it, and run on it; a signal ends what was started."""
    signals = console.Signals("stopping the run", interrupt=True)
    try:
        with hold(arguments.state_dir):
            return _serve(config, arguments)
    except KeyboardInterrupt:
        return signals.exit_code()


def _serve(config: RunConfig | AppConfig, arguments: argparse.Namespace) -> int:
    if not arguments.insecure and not arguments.tls_ca:
        raise InputError("the stock runtime needs --tls-ca beside --tls-cert: Flower's processes check the certificate")
    if arguments.tls_ca:
        check_authority(arguments.tls_ca, "--tls-ca")
    if arguments.resume and any((Path(config.output) / "checkpoint").glob("*")):
        raise InputError(f"--resume of {config.output} needs the quick runtime; Flower's own starts every run anew")
    home = arguments.state_dir.absolute() / "flwr"
    port = free_port()
    with _superlink(arguments, home, port) as link:
        _wait_for_health(link, port, arguments)
        flower = Flower(home, f"127.0.0.1:{port}", arguments.tls_ca)
        if not (arguments.insecure or arguments.any_node):
            keys = sorted((arguments.state_dir / "nodes").glob("*.pub"))
            for key in keys:
                flower.register(key)
            if any(f" {OPTION}" in key.read_text(errors="replace") for key in keys):
                say(f"flower-server: the stock runtime does not check the list behind {OPTION} in the keys")
        scheme = "http" if arguments.insecure else "https"
        door = Forward(f"{scheme}://127.0.0.1:{port}", arguments.tls_ca)
        listener = Listener(Gate(door), arguments.host, arguments.port, cert=arguments.tls_cert, key=arguments.tls_key)
        listener.start()
        say(f"listening on {arguments.host}:{listener.port}, results in {config.output}")
        try:
            if arguments.overwrite:
                _discard(config)
            return flower.run(config, arguments.state_dir.absolute() / "app")
        finally:
            listener.stop()


def _discard(config: RunConfig | AppConfig) -> None:
    if isinstance(config, AppConfig):
        discard_run(Path(config.output))
    else:
        RunFolder(Path(config.output)).discard()


def attach(config: RunConfig | AppConfig, arguments: argparse.Namespace) -> int:
    """Run on a SuperLink that is there; results are written where it runs its apps."""
    if arguments.resume or arguments.overwrite:
        flag = "--resume" if arguments.resume else "--overwrite"
        raise InputError(f"{flag} and --attach exclude each other: the output lies on the SuperLink's machine")
    host, _ = parse_address(arguments.attach)
    if arguments.insecure or arguments.insecure_anywhere:
        say(f"flower-server: {check_insecure(host, anywhere=arguments.insecure_anywhere)}")
    elif not arguments.tls_ca:
        raise InputError("--attach needs --tls-ca, or --insecure for a SuperLink without TLS on this machine")
    state = arguments.state_dir.absolute()
    if arguments.tls_ca:
        check_authority(arguments.tls_ca, "--tls-ca")
    signals = console.Signals("stopping the run", interrupt=True)
    try:
        flower = Flower(state / "flwr", arguments.attach, arguments.tls_ca)
        return flower.run(config, state / "app")
    except KeyboardInterrupt:
        return signals.exit_code()


class Flower:
    """The ``flwr`` command, told where the SuperLink is."""

    def __init__(self, home: Path, address: str, ca: Path | None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        security = f"root-certificates = {json.dumps(str(ca.absolute()))}" if ca else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\naddress = "{address}"\n{security}\n'
        )
        self._environment = environment(home)

    def register(self, key: Path) -> None:
        """Admit a node; one that is admitted already stays so."""
        done = self._flwr("supernode", "register", str(key), _CONNECTION)
        if done.returncode and "already in use" not in done.stdout + done.stderr:
            say(f"{key.name} admits nobody: {' '.join((done.stdout + done.stderr).split())[-200:]}")

    def run(self, config: RunConfig | AppConfig, app: Path) -> int:
        """Submit the run, show its log, and return its exit code. KeyboardInterrupt stops it."""
        stage(app, config)
        done = self._flwr("run", str(app), _CONNECTION, "--format", "json")
        answer = _json(done.stdout)
        if not answer.get("success"):
            raise RunError(f"Flower did not take the run: {' '.join((done.stdout + done.stderr).split())[-300:]}")
        run_id = str(answer["run-id"])
        say(f"run {run_id} submitted")
        with subprocess.Popen([command("flwr"), "log", run_id, _CONNECTION, "--stream"], env=self._environment) as log:
            try:
                log.wait()
            except KeyboardInterrupt:
                log.terminate()
                self._flwr("stop", run_id, _CONNECTION)
                raise
        status = self._status(run_id)
        if status != "finished:completed":
            raise RunError(f"run {run_id} ended as {status}")
        return 0

    def _status(self, run_id: str) -> str:
        runs = _json(self._flwr("list", "--run-id", run_id, _CONNECTION, "--format", "json").stdout).get("runs")
        return str(runs[0].get("status")) if isinstance(runs, list) and runs else "unknown"

    def _flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command("flwr"), *arguments], env=self._environment, capture_output=True, text=True, check=False
        )


@contextlib.contextmanager
def _superlink(arguments: argparse.Namespace, home: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    home.mkdir(parents=True, exist_ok=True)
    line = [command("flower-superlink"), "--host", "127.0.0.1", "--port", str(port)]
    if arguments.insecure:
        line += ["--insecure"]
    else:
        # Absolute, since it starts in a folder of its own.
        line += ["--ssl-ca-certfile", str(arguments.tls_ca.absolute())]
        line += [
            "--ssl-certfile",
            str(arguments.tls_cert.absolute()),
            "--ssl-keyfile",
            str(arguments.tls_key.absolute()),
        ]
        line += [] if arguments.any_node else ["--enable-supernode-auth"]
    log = (home / "superlink.log").open("ab")
    process = subprocess.Popen(
        line, env=environment(home), cwd=home, stdout=log, stderr=log, preexec_fn=_die_with_parent
    )
    try:
        yield process
    finally:
        end(process, 10)
        log.close()


def _die_with_parent() -> None:
    """Let the kernel end this process when its parent is gone, also by kill -9 (Linux; elsewhere nothing happens)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_health(link: subprocess.Popen[bytes], port: int, arguments: argparse.Namespace) -> None:
    verify = False if arguments.insecure else ssl.create_default_context(cafile=str(arguments.tls_ca))
    url = f"http{'' if arguments.insecure else 's'}://127.0.0.1:{port}/health"
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, verify=verify, timeout=5).is_success:
                return
        if link.poll() is not None or time.monotonic() > deadline:
            raise RunError(f"flower-superlink did not start; see {arguments.state_dir / 'flwr' / 'superlink.log'}")
        time.sleep(0.2)


def _json(text: str) -> dict[str, object]:
    """Return the JSON object in what a command printed; empty where there is none."""
    try:
        value = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
