"""What a fleet costs its server: seconds a round, CPU and memory, by the number of devices; and what trouble costs.

    python -m benchmarks.fleet                          # 10, 100 and 1,000 devices; linear and CNN
    python -m benchmarks.fleet --stock 10               # beside Flower's SuperLink and FedAvg, without TLS and keys
    python -m benchmarks.fleet --devices 10000 --participation 0.05
    python -m benchmarks.fleet --devices 10000 --idle 60
    python -m benchmarks.fleet --devices 1000 --restart
    python -m benchmarks.fleet --devices 500 --silent 0.2
    python -m benchmarks.fleet --devices 20 --twice

A real flower-server with TLS and keys trains with MC-PSGD; devices are those of benchmarks/devices.py, in as many
processes as there are cores, on the same machine: what they take is not the server's, but slows it down.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from dataclasses import replace

from benchmarks.fleet_lab import MEGA, MODELS, Fleet, Lab, commit, lab, table_row
from benchmarks.processes import wait_until

HEAD = (
    "| devices | model | link | all in, s | round, s | slowest, s | server CPU s a round | server MB | grows by MB "
    "| refused |\n|---|---|---|---|---|---|---|---|---|---|"
)
TROUBLE = (
    "| devices | model | trouble | a normal round, s | that round, s | answered | the next one, s | answered |\n"
    "|---|---|---|---|---|---|---|---|"
)
# Rounds before trouble begins.
_NORMAL = 5


def main() -> None:
    options = _options()
    print(f"commit {commit()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, TLS, P-384 keys\n")
    if options.idle:
        for devices in options.devices:
            print(idle(Fleet(devices, workers=options.workers), options.idle), flush=True)
    elif options.twice:
        for devices in options.devices:
            print(twice(_fleet(options, devices, options.model[0])), flush=True)
    elif options.restart or options.silent:
        print(TROUBLE, flush=True)
        for model in options.model:
            for devices in options.devices:
                print(trouble(_fleet(options, devices, model), options.silent), flush=True)
    else:
        print(HEAD, flush=True)
        for model in options.model:
            for devices in options.devices:
                print(measure(_fleet(options, devices, model)), flush=True)
            for devices in options.stock:
                print(measure(_fleet(options, devices, model, stock=True)), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")


def measure(fleet: Fleet) -> str:
    """Return what rounds with so many devices cost, the first one left out."""
    with lab(fleet) as made, made.usage.watched():
        connected = made.connected()
        # All are in, and are asked who they are.
        start, before = time.time(), made.usage.memory()
        made.wait_for_rows(1, 900)
        cpu = made.usage.cpu()
        made.wait_for_rows(fleet.rounds - 1)
        rows = made.rows()[1:]
        cpu = (made.usage.cpu() - cpu) / len(rows)
        seconds = [row["seconds"] for row in rows]
        growth = made.usage.most(start) - before
        refused = made.counts()["dropped"]
    title = "stock, fedavg" if fleet.stock else "perennial, mc-psgd"
    times = f"{connected:.1f}", f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}", f"{cpu:.2f}"
    return table_row(
        f"{fleet.devices:,}", fleet.model, title, *times, f"{before / MEGA:.0f}", f"{growth / MEGA:.0f}", refused
    )


def idle(fleet: Fleet, seconds: float) -> str:
    """Return what devices cost that wait for a run which never begins."""
    with lab(Fleet(fleet.devices, workers=fleet.workers, nodes=fleet.devices + 1)) as made:
        connected = made.connected()
        said = f"{fleet.devices} of {fleet.devices + 1} are here"
        wait_until(lambda: said in made.log(), 900, "all to say who they are")
        # Long enough for all to wait, each for its own time.
        time.sleep(min(60.0, seconds))
        cpu = made.usage.cpu()
        time.sleep(seconds)
        share = (made.usage.cpu() - cpu) / seconds
        refused = made.counts()["dropped"]
        return (
            f"{fleet.devices:,} devices: all in after {connected:.1f} s, {refused} refused; waiting they cost "
            f"{100 * share:.1f} % of a core and {made.usage.memory() / MEGA:.0f} MB"
        )


def trouble(fleet: Fleet, silent: float) -> str:
    """Return what a round takes in whose midst all devices restart, or a fraction falls silent, and the next one."""
    with lab(fleet) as made:
        made.connected()
        made.wait_for_rows(_NORMAL, 900)
        normal = statistics.median(row["seconds"] for row in made.rows()[1:])
        _in_mid_round(made, normal)
        made.tell(f"silence {silent}" if silent else "restart")
        struck = len(made.rows())
        made.wait_for_rows(struck + 2)
        that, following = made.rows()[struck : struck + 2]
    return table_row(f"{fleet.devices:,}", fleet.model, f"{silent:.0%} silent" if silent else "all restart",
                f"{normal:.2f}", f"{that['seconds']:.2f}", f"{that['clients-answered']:g}",
                f"{following['seconds']:.2f}", f"{following['clients-answered']:g}")  # fmt: skip


def twice(fleet: Fleet) -> str:
    """Return whether the same training leaves the same predictors when it is deployed again, with late answers."""
    left = []
    for seconds in (0.0, max(fleet.seconds, 0.2)):
        # Whom the seed draws takes part, however late.
        with lab(replace(fleet, seconds=seconds, keys=(("fair-time", 0), ("min-replies", 1)))) as made:
            predictors = made.folder / "run" / "predictors"
            wait_until((predictors / "manifest.json").exists, 3600, "the predictors")
            models = sorted(predictors.glob("*.safetensors"))
            left.append([hashlib.sha256(model.read_bytes()).hexdigest() for model in models])
    said = "the same bits" if left[0] == left[1] and left[0] else "OTHER BITS"
    return f"{fleet.devices} devices, {fleet.model}: {len(left[0])} predictors, deployed twice: {said}"


def _in_mid_round(made: Lab, normal: float) -> None:
    """Return in the midst of a round: a row is written when its round's losses are in, with the next round's."""
    made.wait_for_rows(len(made.rows()) + 1)
    time.sleep(normal / 2)


def _fleet(options: argparse.Namespace, devices: int, model: str, *, stock: bool = False) -> Fleet:
    return Fleet(
        devices, model, options.rounds, options.participation, options.workers, stock=stock, seconds=options.seconds
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--model", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=12, help="a multiple of 4 (default: 12)")
    parser.add_argument("--participation", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=0.0, help="that training seems to take, more or less")
    parser.add_argument("--stock", type=int, nargs="+", default=[], metavar="DEVICES",
                        help="measure Flower's SuperLink and FedAvg with so many as well")  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--idle", type=float, default=0.0, metavar="SECONDS", help="measure waiting devices only")
    which.add_argument("--restart", action="store_true", help="all devices restart in the midst of a round")
    which.add_argument(
        "--silent", type=float, default=0.0, metavar="FRACTION", help="of the devices, which fall silent"
    )
    which.add_argument("--twice", action="store_true", help="train twice, with answers in another order; compare bits")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of devices")
    return parser.parse_args()


if __name__ == "__main__":
    main()
