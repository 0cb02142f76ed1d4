"""What a fleet costs its server: seconds a round, CPU and memory, by the number of devices; and what trouble costs.

    python -m benchmarks.fleet                          # 10, 100, 1,000 and 10,000 devices; linear and CNN
    python -m benchmarks.fleet --stock 10 100           # beside Flower's SuperLink and FedAvg, without TLS and keys
    python -m benchmarks.fleet --devices 10000 --idle 60
    python -m benchmarks.fleet --devices 1000 --restart
    python -m benchmarks.fleet --devices 500 --silent 0.2
    python -m benchmarks.fleet --devices 20 --twice

A real flower-server with TLS and keys trains with MC-PSGD; devices are those of benchmarks/devices.py, in as many
processes as there are cores, on the same machine: what they take is not the server's, but slows it down. Of more than
1,000 devices 5 % take part in a round, unless --participation says otherwise.
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
    "| devices | in a round | model | link | all in, s | round, s | slowest, s | server CPU s a round "
    "| devices' CPU s a round | server MB | grows by MB | refused | told to wait | late |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
TROUBLE = (
    "| devices | model | trouble | a normal round, s | that round, s | answered | the next one, s | answered |\n"
    "|---|---|---|---|---|---|---|---|"
)
# Of more devices than this, such a part is in a round.
_MANY, _PART_OF_MANY = 1000, 0.05
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
        cpu, theirs = made.usage.cpu(), made.devices_cpu()
        made.wait_for_rows(fleet.rounds - 1)
        rows = made.rows()[1:]
        cpu, theirs = (made.usage.cpu() - cpu) / len(rows), (made.devices_cpu() - theirs) / len(rows)
        seconds = [row["seconds"] for row in rows]
        growth = made.usage.most(start) - before
        counts = made.counts()
    title = "stock, fedavg" if fleet.stock else "perennial, mc-psgd"
    part = statistics.median(row["clients-answered"] for row in rows)
    figures = connected, statistics.median(seconds), max(seconds), cpu, theirs
    memory = f"{before / MEGA:.0f}", f"{growth / MEGA:.0f}"
    told = (counts[name] for name in ("dropped", "later", "late"))
    return table_row(
        f"{fleet.devices:,}", f"{part:g}", fleet.model, title, *(f"{one:.2f}" for one in figures), *memory, *told
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
        counts = made.counts()
        trouble = f"{counts['dropped']} refused, {counts['later']} told to wait, {counts['away']} found nobody"
        size, own = made.usage.memory() / MEGA, made.usage.own() / MEGA
        return (
            f"{fleet.devices:,} devices: all in after {connected:.1f} s, {trouble}, {counts['late']} replies too late; "
            f"waiting they cost {100 * share:.1f} % of a core and {size:.0f} MB, of which {own:.0f} MB are no files"
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
    part = options.participation or (_PART_OF_MANY if devices > _MANY else 1.0)
    return Fleet(devices, model, options.rounds, part, options.workers, stock=stock, seconds=options.seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--model", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=12, help="a multiple of 4 (default: 12)")
    parser.add_argument("--participation", type=float, default=0.0, help="default: 1, of many 0.05")
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
