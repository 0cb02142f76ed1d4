"""A fleet on a bad network, from a seed: every round counts once, and the predictors are those of what was accepted.

    python -m tests.chaos.network --seeds 3 --rounds 700 --faults 70

As root, in network namespaces. The same seed brings the same faults.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos.accepted import replayed
from tests.chaos.command_socket import command
from tests.chaos.fault_plan import DEVICES, NETWORK, TUNNELLED, Fault, plan
from tests.chaos.fleet_lab import ETA, GAMMA, STEPS, FleetLab
from tests.conftest import read_predictors
from tests.deploy.lab import Process, rows
from tests.processes import wait_until

ROUND_SECONDS, FAULT_SECONDS, DISK_SECONDS = 900.0, 20.0, 20.0
CLASSES, TOLERANCE = 3, 1e-5


@dataclass
class Tally:
    """What a seed came to. back: seconds until all devices were in a round again, by what had been away."""

    rounds: int = 0
    difference: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    back: dict[str, list[float]] = field(default_factory=lambda: {"device": [], "server": []})


class Trouble:
    """Lets the faults of a plan strike, one after the other. The run waits where one begins, and where it ends."""

    def __init__(self, lab: FleetLab, tally: Tally) -> None:
        self._lab, self._tally = lab, tally

    def strike(self, fault: Fault) -> None:
        self._run_to(fault.after)
        where = f" {list(fault.devices)}" if fault.devices else ""
        minutes = f" {fault.minutes:+d} min" if fault.minutes else ""
        print(f"after round {self._done()}: {fault.kind}{where}{minutes}", flush=True)
        self._tally.faults[fault.kind] += 1
        if fault.kind in NETWORK:
            self._network(fault)
        else:
            machine: Callable[[Fault], None] = getattr(self, "_" + fault.kind.replace("-", "_"), self._behave)
            machine(fault)

    def finish(self) -> None:
        """Let the run go on to its end."""
        self._lab.hold_at(2**31)

    def _network(self, fault: Fault) -> None:
        way = self._lab.tunnel if fault.devices == (TUNNELLED,) else self._lab.proxy
        whom = {} if way == self._lab.tunnel else {"devices": list(fault.devices)}
        command(way, **whom, **dict(fault.rules))
        self._last(fault)
        command(way, **whom)

    def _behave(self, fault: Fault) -> None:
        """Start a device again as another one, and then as itself."""
        (number,) = fault.devices
        self._restart(number, "honest" if fault.kind == "clock" else fault.kind, fault.minutes)
        self._last(fault)
        self._restart(number)

    def _kill(self, fault: Fault) -> None:
        (number,) = fault.devices
        self._lab.devices[number].end(signal.SIGKILL)
        self._last(fault)
        self._lab.devices[number] = self._lab.device(number)
        self._time("device", self._lab.devices[number], " clients, ")

    def _kill_server(self, fault: Fault) -> None:
        """Kill it at work, not where it waits."""
        self._lab.hold_at(fault.after + fault.rounds)
        time.sleep(random.Random(fault.after).random() * 0.3)
        self._lab.server.end(signal.SIGKILL)
        self._lab.server = self._lab.serve(fault.minutes)
        self._time("server", self._lab.server, "listening on")

    def _disk_full(self, fault: Fault) -> None:
        filler = self._lab.output.parent / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**12))
        self._lab.hold_at(fault.after + fault.rounds)
        # A server that ends at its first write ends within a round; one that waits goes on.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not self._lab.server.running(), DISK_SECONDS, "the end of the server")
        filler.unlink()
        self._mind_the_disk()

    def _mind_the_disk(self) -> None:
        """Start a server again that has ended because its disk was full; on a busy machine it ends late."""
        if not self._lab.server.running() and "the disk is full" in self._lab.server.said():
            self._lab.server = self._lab.serve()

    def _data(self, fault: Fault) -> None:
        """Change a shard under a device that has opened it: what it has answered with so far still counts."""
        (number,) = fault.devices
        last = rows(self._lab.output)[-1]
        if number not in last["accepted"]:
            # It may not have opened it yet, and would rightly use what is there now.
            self._restart(number)
            return
        put_back = self._lab.change_data(number, last["block"])
        self._last(fault)
        put_back()
        self._restart(number)

    def _restart(self, number: int, behaviour: str = "honest", minutes: int = 0) -> None:
        self._lab.devices[number].end(signal.SIGKILL)
        self._lab.devices[number] = self._lab.device(number, behaviour, minutes)
        self._lab.devices[number].wait_for("connected as node", ROUND_SECONDS)

    def _time(self, who: str, process: Process, up: str) -> None:
        """Note how long it takes from here, where ``process`` is up, to a round with all devices."""
        process.wait_for(up, ROUND_SECONDS)
        start, done = time.monotonic(), self._done()

        def complete() -> bool:
            self._lab.hold_at(self._done() + 2)
            found = rows(self._lab.output)[done:]
            return any(len(row["accepted"]) == DEVICES for row in found) or not self._lab.server.running()

        wait_until(complete, ROUND_SECONDS, f"a complete round\n{self._lab.server.said()[-3000:]}")
        self._tally.back[who].append(time.monotonic() - start)
        self._lab.hold_at(self._done())

    def _last(self, fault: Fault) -> None:
        """Return after the rounds of a fault, or after some seconds: a round may wait for it to end."""
        target, deadline = max(fault.after, self._done()) + fault.rounds, time.monotonic() + FAULT_SECONDS
        self._lab.hold_at(target)
        while self._done() < target and time.monotonic() < deadline:
            time.sleep(0.05)

    def _run_to(self, number: int) -> None:
        self._lab.hold_at(number)

        def there() -> bool:
            self._mind_the_disk()
            return self._done() >= number or not self._lab.server.running()

        wait_until(there, ROUND_SECONDS, f"round {number}\n{self._lab.server.said()[-3000:]}")
        assert self._lab.server.running(), self._lab.server.said()[-3000:]

    def _done(self) -> int:
        return len(rows(self._lab.output))


def endure(folder: Path, *, seed: int, rounds: int, faults: int, number: int = 3) -> Tally:
    """Run a fleet under the faults of a seed; raises AssertionError if anything is lost or counted twice."""
    cycles = 2
    per_block = rounds // (2 * cycles)
    lab = FleetLab(folder, number, rounds_per_block=per_block, cycles=cycles, seed=seed)
    tally = Tally(rounds=2 * cycles * per_block)
    try:
        trouble = Trouble(lab, tally)
        for fault in plan(seed, faults, tally.rounds):
            trouble.strike(fault)
        trouble.finish()
        assert lab.server.wait(ROUND_SECONDS) == 0, lab.server.said()[-3000:]
        tally.difference = check(lab.output, lab.data, tally.rounds)
        assert "connected as node" not in lab.stranger.said(), "a key that is not registered was let in"
    finally:
        lab.close()
    return tally


def check(output: Path, data: Any, count: int) -> float:
    """Hold what a run wrote against the replay; return the largest difference of a predictor."""
    found = rows(output)
    assert [row["server-round"] for row in found] == list(range(1, count + 1)), "a round is missing or there twice"
    for row in found:
        accepted = row["accepted"]
        assert accepted == sorted(set(accepted)), f"a client counts twice: {row}"
        assert accepted, row
        assert set(accepted) <= set(range(DEVICES)), f"a client that is not registered: {row}"
    expected = replayed(found, data, CLASSES, gamma=GAMMA, eta=ETA, steps=STEPS)
    differences = []
    for arrays, model in zip(read_predictors(output), expected, strict=True):
        flat = np.vstack([arrays["fc.weight"].T, arrays["fc.bias"][None]]).astype(np.float64)
        differences.append(float(np.abs(flat - model).max()))
    assert max(differences) < TOLERANCE, f"predictors differ from the replay by {max(differences):g}"
    return max(differences)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from the first one on (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--rounds", type=int, default=700, help="of each seed, a multiple of 4 (default: 700)")
    parser.add_argument("--faults", type=int, default=70, help="of each seed (default: 70)")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"commit {commit}", flush=True)
    start, every = time.monotonic(), Tally()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        with tempfile.TemporaryDirectory(prefix="network-", ignore_cleanup_errors=True) as folder:
            one = endure(Path(folder), seed=seed, rounds=options.rounds, faults=options.faults)
        print(f"seed {seed}: {one.faults.total()} faults in {one.rounds} rounds, "
              f"largest difference from the replay {one.difference:.1e}", flush=True)  # fmt: skip
        every.rounds += one.rounds
        every.difference = max(every.difference, one.difference)
        every.faults += one.faults
        for who, seconds in one.back.items():
            every.back[who] += seconds
    print(", ".join(f"{kind} {count}" for kind, count in sorted(every.faults.items())))
    for who, seconds in every.back.items():
        if seconds:
            print(f"from a {who} that is up to a round with all devices: median {statistics.median(seconds):.1f} s, "
                  f"at most {max(seconds):.1f} s, {len(seconds)} times")  # fmt: skip
    print(f"{every.faults.total()} faults in {every.rounds} rounds: predictors within {every.difference:.1e} of the "
          f"replay ({time.monotonic() - start:.0f} s in all)")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
