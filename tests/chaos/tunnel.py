"""A bad network between two hosts, below TCP: ``tunnel.py SOCKET NAMESPACE ADDRESS NAMESPACE ADDRESS SEED``.

Each host has a TUN device; what one writes the other reads. A command on SOCKET says which part of the packets is lost,
comes late and so in another order, or comes twice:

    {"lost": 0.1, "late": 0.2, "twice": 0.1}
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

from tests.chaos.command_socket import obey

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _CLONE_NEWNET = 0x400454CA, 0x0001, 0x1000, 0x40000000
_LATE_SECONDS = 0.05
RATES = {"lost": 0.0, "late": 0.0, "twice": 0.0}


def open_tun(namespace: str, address: str) -> int:
    """Return a TUN device in a namespace, as an open file."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", b"bad", _IFF_TUN | _IFF_NO_PI))
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)
    for words in (("address", "add", f"{address}/30", "dev", "bad"), ("link", "set", "bad", "up", "mtu", "1400")):
        subprocess.run(["ip", "-netns", namespace, *words], check=True)
    return tun


def carry(source: int, target: int, rates: dict[str, float], rng: random.Random) -> None:
    """Carry one packet, or not."""
    try:
        packet = os.read(source, 2**16)
    except BlockingIOError:
        return
    if rng.random() < rates["lost"]:
        return

    def deliver() -> None:
        with contextlib.suppress(OSError):
            os.write(target, packet)

    for _ in range(2 if rng.random() < rates["twice"] else 1):
        if rng.random() < rates["late"]:
            asyncio.get_running_loop().call_later(_LATE_SECONDS * rng.random(), deliver)
        else:
            deliver()


async def main(path: Path, ends: list[int], seed: int) -> None:
    rates, rng = dict(RATES), random.Random(seed)
    one, other = ends
    loop = asyncio.get_running_loop()
    loop.add_reader(one, carry, one, other, rates, rng)
    loop.add_reader(other, carry, other, one, rates, rng)
    await obey(path, lambda words: rates.update({**RATES, **words}))


if __name__ == "__main__":
    tuns = [open_tun(sys.argv[2], sys.argv[3]), open_tun(sys.argv[4], sys.argv[5])]
    asyncio.run(main(Path(sys.argv[1]), tuns, int(sys.argv[6])))
