"""A bad network between devices and their server, above TCP: ``proxy.py SOCKET SERVER:PORT FIRST_PORT COUNT SEED``.

Device i reaches the server by port FIRST_PORT + i. A command on SOCKET changes what becomes of a device's connections:

    {"devices": [1, 4], "delay": 0.2, "rate": 20000, "corrupt": 1, "stall": true}
    {"devices": [1, 4], "refuse": true, "cut": true, "half": true}
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.command_socket import obey


@dataclass
class Way:
    """What becomes of one device's bytes. corrupt: pieces that are still to be spoiled."""

    delay: float = 0.0
    rate: float = 0.0
    stall: bool = False
    refuse: bool = False
    corrupt: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    upwards: set[asyncio.StreamWriter] = field(default_factory=set)

    def change(self, words: dict[str, Any]) -> None:
        """Take over the rules of a command, the others as they are when nothing is wrong; and strike once."""
        self.delay, self.rate = words.get("delay", 0.0), words.get("rate", 0.0)
        self.stall, self.refuse = words.get("stall", False), words.get("refuse", False)
        self.corrupt = words.get("corrupt", 0)
        if words.get("half"):
            for writer in self.upwards:
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write_eof()
        if words.get("cut") or self.refuse:
            for writer in [*self.writers]:
                writer.transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rng: random.Random) -> None:
        """Carry bytes one way until the end."""
        self.writers.add(writer)
        try:
            while data := await reader.read(2**14):
                while self.stall:
                    await asyncio.sleep(0.05)
                await asyncio.sleep(self.delay + (len(data) / self.rate if self.rate else 0.0))
                if self.corrupt:
                    self.corrupt -= 1
                    place = rng.randrange(len(data))
                    data = data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except (OSError, RuntimeError):
            writer.transport.abort()
        finally:
            self.writers.discard(writer)


async def main(path: Path, server: str, first: int, count: int, seed: int) -> None:
    ways = [Way() for _ in range(count)]
    rng = random.Random(seed)
    host, _, port = server.rpartition(":")

    def listen(way: Way) -> Any:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if way.refuse:
                    raise OSError("refused")
                answers, onwards = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.transport.abort()
                return
            way.upwards.add(onwards)
            try:
                await asyncio.gather(way.carry(reader, onwards, rng), way.carry(answers, writer, rng))
            finally:
                way.upwards.discard(onwards)
                for one in (onwards, writer):
                    one.close()

        return connected

    for number, way in enumerate(ways):
        await asyncio.start_server(listen(way), "0.0.0.0", first + number)
    await obey(path, lambda words: [ways[number].change(words) for number in words["devices"]] and None)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])))
