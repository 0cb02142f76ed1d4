"""Requests without a pause while versions are published: each answer is checked against the version that it names.

As a program: ``python -m tests.server.predict.serving.storm --requests 20000 --versions 200``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from perennial.server.predict.publishing import publish
from perennial.server.predict.versions import numbers
from tests.server.predict.published import learnt
from tests.server.predict.serving.served import Reply, request, serving


def storm(run: Path, *, requests: int, versions: int, connections: int) -> Counter[int]:
    """Return how many answers each version gave; an AssertionError if one is wrong, or older than one before it.

    requests: at least; they go on until the last version is taken up.
    """
    first = numbers(run)[-1]
    with serving(run) as served:
        progress, over = [0], threading.Event()
        failures: list[BaseException] = []

        def publishing() -> None:
            try:
                for count, number in enumerate(range(first + 1, first + 1 + versions)):
                    # Spread over the requests.
                    while progress[0] < requests * count // versions:
                        time.sleep(0.001)
                    assert publish(run, learnt(number), kept=2) == number
                    served.wait_for(number)
            except BaseException as error:
                failures.append(error)
            finally:
                over.set()

        publisher = threading.Thread(target=publishing)
        publisher.start()
        seen = asyncio.run(_all(served.port, requests, connections, progress, over))
        publisher.join()
        assert failures == []
        return seen


async def _all(port: int, requests: int, connections: int, progress: list[int], over: threading.Event) -> Counter[int]:
    seen: Counter[int] = Counter()
    numbered = itertools.takewhile(lambda number: number < requests or not over.is_set(), itertools.count())

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        newest = 0
        for number in numbered:
            block = ("day", "night")[number % 2]
            x = np.random.default_rng(number).integers(-8, 8, (1 + number % 3, 3)).tolist()
            reply = await exchange(reader, writer, request(x, parameters={"block": block}))
            assert reply.status == 200, reply.body
            assert reply.said["parameters"]["block"] == block
            assert reply.is_right(x), (number, reply.said)
            assert reply.version >= newest, "a newer version was there before"
            newest = reply.version
            seen[newest] += 1
            progress[0] += 1
        writer.close()

    try:
        await asyncio.gather(*(one() for _ in range(connections)))
    finally:
        # Lets the publisher end, whatever happened.
        progress[0] = requests
    return seen


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: Any) -> Reply:
    body = json.dumps(said).encode()
    head = f"POST /v2/models/rides/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    lines = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in itertools.takewhile(bool, lines[1:]))
    return Reply(int(lines[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--versions", type=int, default=200)
    parser.add_argument("--connections", type=int, default=16)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        publish(Path(folder), learnt(1))
        begin = time.monotonic()
        seen = storm(Path(folder), **vars(arguments))
        seconds = time.monotonic() - begin
    print(
        f"{seen.total()} requests on {arguments.connections} connections in {seconds:.0f} s, while "
        f"{arguments.versions} versions were published: none failed, each was right for the version that it named "
        f"({len(seen)} of them)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
