"""What lets the faults of a plan strike a fleet, one after the other, and sees that each of them does."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.command_socket import command
from tests.chaos.fault_plan import DEVICES, NETWORK, STRUCK, TUNNELLED, Fault
from tests.chaos.fleet_lab import FleetLab
from tests.chaos.tunnel import RATES
from tests.deploy.lab import Process, rows
from tests.processes import wait_until

ROUND_SECONDS, FAULT_SECONDS = 900.0, 20.0
# Within so many seconds a fault must have struck.
STRIKE_SECONDS = 120.0
POLL = 0.02


@dataclass
class Tally:
    """What a seed came to.

    struck: how many pieces, connections and packets suffered, by kind. back: seconds until all devices were in a round
    again, by what had been away.
    """

    rounds: int = 0
    difference: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    back: dict[str, list[float]] = field(default_factory=lambda: {"device": [], "server": []})


class Trouble:
    """Lets the faults of a plan strike, one after the other. The run waits where one begins, and where it ends."""

    def __init__(self, lab: FleetLab, tally: Tally) -> None:
        self._lab, self._tally, self._begun = lab, tally, time.monotonic()

    def strike(self, fault: Fault) -> None:
        self._run_to(fault.after)
        where = f" {list(fault.devices)}" if fault.devices else ""
        minutes = f" {fault.minutes:+d} min" if fault.minutes else ""
        when = f"after round {self._done()} ({time.monotonic() - self._begun:.0f} s)"
        print(f"{when}: {fault.kind}{where}{minutes}", flush=True)
        self._tally.faults[fault.kind] += 1
        if fault.kind in NETWORK:
            self._network(fault)
        else:
            machine: Callable[[Fault], None] = getattr(self, "_" + fault.kind.replace("-", "_"), self._behave)
            machine(fault)

    def finish(self) -> None:
        """Let the run go on to its end."""
        self._lab.hold_at(2**31)

    def struck(self) -> Counter[str]:
        """Return how often the network has spoiled something."""
        return Counter({**command(self._lab.proxy), **command(self._lab.tunnel)})

    def _network(self, fault: Fault) -> None:
        way = self._lab.tunnel if fault.devices == (TUNNELLED,) else self._lab.proxy
        whom = {} if way == self._lab.tunnel else {"devices": list(fault.devices)}
        before = command(way).get(fault.kind, 0)
        command(way, **whom, **dict(fault.rules))
        self._last(fault, lambda: command(way)[fault.kind] > before)
        command(way, **(whom or RATES))

    def _behave(self, fault: Fault) -> None:
        """Start a device again as another one, and then as itself."""
        (number,) = fault.devices
        self._restart(number, "honest" if fault.kind == "clock" else fault.kind, fault.minutes)
        device, begun = self._lab.devices[number], self._done()
        if fault.kind == "clock":
            self._last(fault, lambda: self._took_part(number, begun))
        else:
            self._last(fault, lambda: STRUCK in device.said())
        self._restart(number)

    def _kill(self, fault: Fault) -> None:
        (number,) = fault.devices
        self._lab.devices[number].end(signal.SIGKILL)
        self._last(fault)
        self._lab.devices[number] = self._lab.device(number)
        self._measure("device", self._lab.devices[number], " clients, ")

    def _kill_server(self, fault: Fault) -> None:
        """Kill it at work, not where it waits."""
        self._lab.hold_at(fault.after + 4 * fault.rounds)
        time.sleep(random.Random(fault.after).random() * 0.3)
        self._lab.server.end(signal.SIGKILL)
        self._lab.server = self._lab.serve(fault.minutes)
        self._measure("server", self._lab.server, "listening on")

    def _disk_full(self, fault: Fault) -> None:
        filler = self._lab.output.parent / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(2**12))
        self._last(fault, lambda: not self._lab.server.running())
        filler.unlink()
        self._mind_the_disk()

    def _mind_the_disk(self) -> None:
        """Start a server again that has ended because its disk was full; on a busy machine it ends late."""
        if not self._lab.server.running() and "the disk is full" in self._lab.server.said():
            self._lab.server = self._lab.serve()

    def _data(self, fault: Fault) -> None:
        """Change a shard under a device that has opened it: what it has answered with so far still counts."""
        (number,) = fault.devices
        # One that has not opened it yet would rightly use what is there now.
        self._last(fault, lambda: self._took_part(number, self._done() - 1))
        put_back, begun = self._lab.change_data(number, rows(self._lab.output)[-1]["block"]), self._done()
        self._last(fault, lambda: self._took_part(number, begun))
        put_back()
        self._restart(number)

    def _took_part(self, number: int, begun: int) -> bool:
        """Whether a round after ``begun`` has taken an update of a device."""
        return any(number in row["accepted"] for row in rows(self._lab.output)[begun:])

    def _restart(self, number: int, behaviour: str = "honest", minutes: int = 0) -> None:
        self._lab.devices[number].end(signal.SIGKILL)
        self._lab.devices[number] = self._lab.device(number, behaviour, minutes)
        self._lab.devices[number].wait_for("connected as node", ROUND_SECONDS)

    def _measure(self, who: str, process: Process, up: str) -> None:
        """Note how long it takes from here, where ``process`` is up, to a round with all devices."""
        process.wait_for(up, ROUND_SECONDS)
        start, begun = time.monotonic(), self._done()

        def complete() -> bool:
            self._lab.hold_at(self._done() + 2)
            found = rows(self._lab.output)[begun:]
            return any(len(row["accepted"]) == DEVICES for row in found) or not self._lab.server.running()

        wait_until(complete, ROUND_SECONDS, f"a complete round\n{self._lab.server.said()[-3000:]}")
        self._tally.back[who].append(time.monotonic() - start)
        self._lab.hold_at(self._done())

    def _last(self, fault: Fault, struck: Callable[[], bool] = lambda: True) -> None:
        """Return after the rounds of a fault, or after some seconds: a round may wait for it to end.

        struck: whether anything has come of it yet; further rounds go by until that is so.
        """
        target, begun = max(fault.after, self._done()) + fault.rounds, time.monotonic()
        while True:
            over = time.monotonic() - begun > FAULT_SECONDS or not self._lab.server.running()
            if (over or self._done() >= target) and struck():
                return
            if time.monotonic() - begun > STRIKE_SECONDS:
                raise AssertionError(f"{fault} has not struck\n{self._lab.server.said()[-3000:]}")
            target = max(target, self._done() + 1)
            self._lab.hold_at(target)
            time.sleep(POLL)

    def _run_to(self, number: int) -> None:
        self._lab.hold_at(number)

        def there() -> bool:
            self._mind_the_disk()
            return self._done() >= number or not self._lab.server.running()

        wait_until(there, ROUND_SECONDS, f"round {number}\n{self._lab.server.said()[-3000:]}")
        assert self._lab.server.running(), self._lab.server.said()[-3000:]

    def _done(self) -> int:
        return done(self._lab.output)


def done(output: Path) -> int:
    """Return how many rounds are in metrics.jsonl, without reading what is in them."""
    try:
        return (output / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
