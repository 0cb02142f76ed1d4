"""Which faults strike a fleet, when, and whom: from a seed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

DEVICES = 8
# The one behind the tunnel, where packets are lost; the others are behind the proxy, where connections suffer.
TUNNELLED = DEVICES - 1
NETWORK = ("delay", "throttle", "stall", "half", "cut", "corrupt", "partition", "lost", "late-packets", "twice-packets")
MACHINES = ("kill", "kill-server", "disk-full", "data", "clock", "hostile", "twice", "again", "late")
KINDS = NETWORK + MACHINES
_PACKETS = ("lost", "late-packets", "twice-packets")
_GLOBAL = ("kill-server", "disk-full")
# What a device that misbehaves says each time.
STRUCK = "struck: "


@dataclass(frozen=True)
class Fault:
    """A fault that begins after a round and lasts some rounds. minutes: by which a clock is wrong."""

    kind: str
    devices: tuple[int, ...]
    after: int
    rounds: int
    minutes: int = 0
    rules: tuple[tuple[str, Any], ...] = ()


def plan(seed: int, count: int, rounds: int) -> list[Fault]:
    """Return ``count`` faults over ``rounds`` rounds, one after the other; each kind comes before any comes again."""
    rng = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < count:
        kinds += rng.sample(KINDS, len(KINDS))
    space = (rounds - 4) / count
    return [
        _fault(kind, int(2 + place * space), max(1, int(space / 2)), rng) for place, kind in enumerate(kinds[:count])
    ]


def _fault(kind: str, after: int, rounds: int, rng: random.Random) -> Fault:
    devices: tuple[int, ...] = (rng.randrange(TUNNELLED),)
    if kind == "partition":
        devices = tuple(sorted(rng.sample(range(TUNNELLED), rng.randint(2, 3))))
    elif kind in _PACKETS:
        devices = (TUNNELLED,)
    elif kind in _GLOBAL:
        devices = ()
    minutes = rng.choice((-30, -3, 3, 30)) if kind in ("clock", "kill-server") else 0
    return Fault(kind, devices, after, rounds, minutes, tuple(_rules(kind, rng).items()))


def _rules(kind: str, rng: random.Random) -> dict[str, Any]:
    """Return what the proxy or the tunnel is told."""
    return {
        "delay": {"delay": rng.uniform(0.05, 0.3)},
        "throttle": {"rate": rng.uniform(2_000, 20_000)},
        "stall": {"stall": True},
        "half": {"half": True},
        "cut": {"cut": True},
        "corrupt": {"corrupt": rng.randint(1, 3)},
        "partition": {"refuse": True},
        "lost": {"lost": rng.uniform(0.05, 0.2)},
        "late-packets": {"late-packets": rng.uniform(0.1, 0.5)},
        "twice-packets": {"twice-packets": rng.uniform(0.1, 0.5)},
    }.get(kind, {})
