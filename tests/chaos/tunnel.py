"""A bad network between two hosts, below TCP: ``tunnel.py SOCKET NAMESPACE ADDRESS NAMESPACE ADDRESS SEED``.

Each host has a TUN device; what one writes the other reads. A command on SOCKET says which part of the packets is lost,
comes late and so in another order, or comes twice:

    {"lost": 0.1, "late-packets": 0.2, "twice-packets": 0.1}

It is answered with how many packets each of these has struck by now; an empty command only asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.command_socket import obey
from tests.chaos.namespace import enter

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_LATE_SECONDS = 0.05
LOST, LATE, TWICE = "lost", "late-packets", "twice-packets"
RATES = {LOST: 0.0, LATE: 0.0, TWICE: 0.0}


def open_tun(namespace: str, address: str) -> int:
    """Return a TUN device in a namespace, as an open file."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        enter(f"/run/netns/{namespace}")
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", b"bad", _IFF_TUN | _IFF_NO_PI))
    finally:
        enter(f"/proc/self/fd/{home}")
        os.close(home)
    for words in (("address", "add", f"{address}/30", "dev", "bad"), ("link", "set", "bad", "up", "mtu", "1400")):
        subprocess.run(["ip", "-netns", namespace, *words], check=True)
    return tun


class Tunnel:
    """Carries packets, or not."""

    def __init__(self, seed: int) -> None:
        self._rates, self._rng, self._struck = dict(RATES), random.Random(seed), Counter[str]()

    def act(self, words: dict[str, Any]) -> dict[str, int]:
        if words:
            self._rates = {**RATES, **words}
        return self._struck

    def carry(self, source: int, target: int) -> None:
        """Carry one packet."""
        try:
            packet = os.read(source, 2**16)
        except BlockingIOError:
            return
        if self._strikes(LOST):
            return

        def deliver() -> None:
            with contextlib.suppress(OSError):
                os.write(target, packet)

        for _ in range(2 if self._strikes(TWICE) else 1):
            if self._strikes(LATE):
                asyncio.get_running_loop().call_later(_LATE_SECONDS * self._rng.random(), deliver)
            else:
                deliver()

    def _strikes(self, kind: str) -> bool:
        strikes = self._rng.random() < self._rates[kind]
        self._struck[kind] += strikes
        return strikes


async def main(path: Path, ends: list[int], seed: int) -> None:
    tunnel, (one, other) = Tunnel(seed), ends
    loop = asyncio.get_running_loop()
    loop.add_reader(one, tunnel.carry, one, other)
    loop.add_reader(other, tunnel.carry, other, one)
    await obey(path, tunnel.act)


if __name__ == "__main__":
    tuns = [open_tun(sys.argv[2], sys.argv[3]), open_tun(sys.argv[4], sys.argv[5])]
    asyncio.run(main(Path(sys.argv[1]), tuns, int(sys.argv[6])))
