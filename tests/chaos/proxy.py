"""A bad network between devices and their server, above TCP: ``proxy.py SOCKET SERVER:PORT FIRST_PORT COUNT SEED``.

Device i reaches the server by port FIRST_PORT + i. A command on SOCKET changes what becomes of a device's connections:

    {"devices": [1, 4], "delay": 0.2, "rate": 20000, "corrupt": 1, "stall": true}
    {"devices": [1, 4], "refuse": true, "cut": true, "half": true}

Each command is answered with how often each kind of fault has struck by now; one that names no devices only asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.command_socket import obey


@dataclass
class Way:
    """What becomes of one device's bytes. corrupt: pieces that are still to be spoiled; cut, half: still to be done."""

    rng: random.Random
    struck: Counter[str]
    delay: float = 0.0
    rate: float = 0.0
    stall: bool = False
    refuse: bool = False
    corrupt: int = 0
    cut: bool = False
    half: bool = False
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    upwards: set[asyncio.StreamWriter] = field(default_factory=set)

    def change(self, words: dict[str, Any]) -> None:
        """Take over the rules of a command, the others as they are when nothing is wrong; and strike once."""
        self.delay, self.rate = words.get("delay", 0.0), words.get("rate", 0.0)
        self.stall, self.refuse = words.get("stall", False), words.get("refuse", False)
        self.corrupt, self.cut, self.half = words.get("corrupt", 0), words.get("cut", False), words.get("half", False)
        self._break()

    def _break(self) -> None:
        """Do to the connections what is still to be done; one that is not there yet suffers later."""
        if self.half and self.upwards:
            self.half = False
            self.struck["half"] += 1
            for writer in self.upwards:
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write_eof()
        if (self.cut or self.refuse) and self.writers:
            self.struck["partition" if self.refuse else "cut"] += 1
            self.cut = False
            for writer in [*self.writers]:
                writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes one way until the end."""
        self.writers.add(writer)
        try:
            while data := await reader.read(2**14):
                self._break()
                writer.write(await self._suffered(data))
                await writer.drain()
            writer.write_eof()
        except (OSError, RuntimeError):
            writer.transport.abort()
        finally:
            self.writers.discard(writer)

    async def _suffered(self, data: bytes) -> bytes:
        """Return one piece as it arrives, when it arrives."""
        self.struck["stall"] += self.stall
        while self.stall:
            await asyncio.sleep(0.05)
        self.struck["delay"] += self.delay > 0
        self.struck["throttle"] += self.rate > 0
        await asyncio.sleep(self.delay + (len(data) / self.rate if self.rate else 0.0))
        if not self.corrupt:
            return data
        self.corrupt -= 1
        self.struck["corrupt"] += 1
        place = self.rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << self.rng.randrange(8)]) + data[place + 1 :]


async def main(path: Path, server: str, first: int, count: int, seed: int) -> None:
    rng, struck = random.Random(seed), Counter[str]()
    ways = [Way(rng, struck) for _ in range(count)]
    host, _, port = server.rpartition(":")

    def listen(way: Way) -> Any:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if way.refuse:
                    struck["partition"] += 1
                    raise OSError("refused")
                answers, onwards = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.transport.abort()
                return
            way.upwards.add(onwards)
            try:
                await asyncio.gather(way.carry(reader, onwards), way.carry(answers, writer))
            finally:
                way.upwards.discard(onwards)
                for one in (onwards, writer):
                    one.close()

        return connected

    def act(words: dict[str, Any]) -> dict[str, int]:
        for number in words.get("devices", []):
            ways[number].change(words)
        return struck

    for number, way in enumerate(ways):
        await asyncio.start_server(listen(way), "0.0.0.0", first + number)
    await obey(path, act)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])))
