"""``flower-server``: one command that serves the fleet and trains, in the foreground."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from perennial.common.command import console, extras, flower, places
from perennial.common.command.address import check_insecure, check_pair
from perennial.common.command.app_config import AppConfig
from perennial.common.command.config import RunConfig
from perennial.common.command.console import say
from perennial.common.command.errors import InputError
from perennial.server import options
from perennial.server.jobs import Job, job_of
from perennial.server.report.web.beside import page_beside
from perennial.server.run.folder import RunFolder
from perennial.server.run.lock import hold

# They import all of Flower's internals that the quick runtime's server needs, without and with stock nodes.
_QUICK = {False: "perennial.server.link.fleet_run", True: "perennial.server.link.both"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 done, 1 failed, 2 bad usage, 128 + n ended by signal n."""
    # Flower reads these when it is imported.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
    parsed = options.parse(arguments)
    return console.run(lambda: _main(parsed), "flower-server")


def _main(arguments: argparse.Namespace) -> int:
    console.log_to_console(verbose=arguments.verbose)
    config = options.run_config(arguments)
    with places.writing_to(Path(config.output)):
        return _run(config, arguments)


def _run(config: RunConfig | AppConfig, arguments: argparse.Namespace) -> int:
    if not (arguments.resume or arguments.overwrite or arguments.attach):
        RunFolder(Path(config.output)).refuse_to_lose(
            "go on with it by --resume, keep it by another --output, or lose it by --overwrite"
        )
    folder = Path(config.output)
    with page_beside(arguments.page, [folder], folder.resolve().name, anew=not arguments.resume):
        return _train(config, arguments)


def _train(config: RunConfig | AppConfig, arguments: argparse.Namespace) -> int:
    if arguments.attach:
        from perennial.server.link import stock

        return stock.attach(config, arguments)
    if isinstance(config, RunConfig):
        extras.need("app")
    _check_listener(arguments)
    if arguments.runtime == "quick" and flower.use_stock(_QUICK[arguments.stock_nodes], "flower-server"):
        arguments.runtime = "stock"
    if arguments.runtime == "stock":
        from perennial.server.link import stock

        return stock.serve(config, arguments)
    return _serve(config, arguments)


def _check_listener(arguments: argparse.Namespace) -> None:
    """Fill in the host, and refuse what would be open by mistake."""
    arguments.insecure |= arguments.insecure_anywhere
    arguments.host = arguments.host or ("127.0.0.1" if arguments.insecure else "0.0.0.0")
    if not 0 <= arguments.port < 2**16:
        raise InputError(f"--port must be in [0, 65536), got {arguments.port}")
    if arguments.insecure:
        if arguments.tls_cert or arguments.tls_key:
            raise InputError("--insecure and --tls-cert exclude each other")
        say(f"flower-server: {check_insecure(arguments.host, anywhere=arguments.insecure_anywhere)}")
    elif not (arguments.tls_cert and arguments.tls_key):
        raise InputError(
            "give --tls-cert and --tls-key (deploy/certificates.sh makes them), or --insecure to try it on this machine"
        )
    else:
        check_pair(arguments.tls_cert, arguments.tls_key)


def _serve(config: RunConfig | AppConfig, arguments: argparse.Namespace) -> int:
    """Train with whoever connects; everything lives in this process."""
    job = job_of(config, resume=arguments.resume, overwrite=arguments.overwrite)
    with hold(arguments.state_dir):
        return _serve_job(config, job, arguments)


def _serve_job(config: RunConfig | AppConfig, job: Job, arguments: argparse.Namespace) -> int:
    from perennial.server.cohort.patience import Patience
    from perennial.server.link.bundle import bundled
    from perennial.server.link.eager_grid import Stopped
    from perennial.server.link.fleet_run import open_run
    from perennial.server.link.key_folder import KeyFolder
    from perennial.server.link.listener import Listener
    from perennial.server.predict.offering import PredictorOffer

    signals = console.Signals("stopping: the round under way is abandoned, the rounds before it are kept")
    keyed = not (arguments.insecure or arguments.any_node)
    # A stock node asks for the app before it answers anything.
    bundle = bundled(config, arguments.state_dir.absolute() / "app") if arguments.stock_nodes else b""
    patience = (
        Patience(config.fair_time, config.min_replies, config.oversample) if isinstance(config, RunConfig) else None
    )
    fleet = open_run(
        job.told,
        keyed=keyed,
        bundle=bundle,
        cert=arguments.tls_cert,
        stop=signals.stop,
        offer=PredictorOffer(job.folder),
        patience=patience,
    )
    keys = KeyFolder(arguments.state_dir / "nodes", fleet.registry)
    listener = Listener(fleet.app, arguments.host, arguments.port, cert=arguments.tls_cert, key=arguments.tls_key)
    if keyed:
        keys.start()
        remedy = "" if len(keys) else "; deploy/admit.sh puts one there"
        say(f"{len(keys)} node keys in {arguments.state_dir / 'nodes'}{remedy}")
    listener.start()
    say(f"listening on {arguments.host}:{listener.port}, results in {job.folder}")
    completed = False
    try:
        job.train(fleet.grid)
        completed = True
    except Stopped:
        say(f"stopped; `flower-server --resume` with the same settings goes on from {job.folder / 'checkpoint'}")
    finally:
        keys.stop()
        fleet.finish(completed)
        listener.stop()
    if completed:
        _report(job.folder)
    return 0 if completed else signals.exit_code()


def _report(folder: Path) -> None:
    """Write report.html; a server needs no figures to do its work."""
    if "matplotlib" in extras.missing("ray"):
        say(f"no figures/*.png, which need matplotlib: {extras.install('ray')}")
    from perennial.server.report import html, reading

    say(f"report: {html.write(folder, [reading.read(folder)], folder.name)}")


if __name__ == "__main__":
    raise SystemExit(main())
