"""``flower-predict serve`` beside a bare FastAPI and torch endpoint: the same bodies, one after the other, in one run.

    python -m benchmarks.serving [--seconds 2] [--repeats 3]

Each setting is measured in turns. A ratio is that of two turns side by side, the smallest and the largest are given.
CPU is what the server's process used for one request: the network around it can be slow, this can not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson
import torch

from perennial.common.cycle.schedule import Slot
from perennial.common.data.examples import Signature
from perennial.common.task import models
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.predictor_network import PredictorNetwork
from perennial.server.predict.publishing import ModelSpec, Publication, publish
from perennial.server.predict.serving import tensors

CONNECTIONS, EXAMPLES = (1, 8, 64), (1, 32)
SIDES = {
    "perennial": ["-m", "perennial.server.predict.cli", "serve", "{run}", "--name", "cnn", "--port"],
    "bare, async def": ["-m", "benchmarks.sides.bare_endpoint", "{port}"],
    "bare, def": ["-m", "benchmarks.sides.bare_endpoint", "{port}", "--threads"],
}


@dataclass
class Turn:
    """What one side did in its turn. cpu: seconds of the server's process for one request."""

    a_second: float
    p99: float
    cpu: float


class Side:
    """A server in a process of its own."""

    def __init__(self, name: str, run: Path) -> None:
        self.name, self._port = name, free_port()
        line = [part.format(run=run, port=self._port) for part in SIDES[name]]
        if name == "perennial":
            line.append(str(self._port))
        self._process = subprocess.Popen([sys.executable, *line], stderr=subprocess.DEVNULL)

    def turn(self, body: bytes, connections: int, seconds: float) -> Turn:
        before = self._cpu()
        begin = time.perf_counter()
        latencies = asyncio.run(load(self._port, body, connections, seconds))
        took, used = time.perf_counter() - begin, self._cpu() - before
        return Turn(len(latencies) / took, float(np.quantile(latencies, 0.99)), used / len(latencies))

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.1)
        raise SystemExit(f"{self.name} did not start")

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _cpu(self) -> float:
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Asking(asyncio.Protocol):
    """One connection that sends a request as soon as the one before is answered."""

    def __init__(self, request: bytes, until: float, latencies: list[float]) -> None:
        self._request, self._until, self._latencies = request, until, latencies
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._received, self._missing = b"", 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(rest) < length:
            return
        if not head.startswith(b"HTTP/1.1 200"):
            self.over.set_exception(RuntimeError((head + rest)[:300].decode()))
            self._transport.close()
            return
        self._latencies.append(time.perf_counter() - self._begin)
        if time.perf_counter() < self._until:
            self._ask()
        else:
            self._transport.close()
            self.over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("the server hung up"))

    def _ask(self) -> None:
        self._received, self._begin = b"", time.perf_counter()
        self._transport.write(self._request)


async def load(port: int, body: bytes, connections: int, seconds: float) -> list[float]:
    """Return the seconds of each request."""
    head = "POST /v2/models/cnn/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    made = [
        await asyncio.get_running_loop().create_connection(
            lambda: Asking(head.encode() + body, until, latencies), "127.0.0.1", port
        )
        for _ in range(connections)
    ]
    await asyncio.gather(*(asking.over for _, asking in made))
    return latencies


def bodies() -> dict[int, bytes]:
    """Return a request by its number of examples: the numbers flat, as both sides take them."""
    found = {}
    for count in EXAMPLES:
        x = np.random.default_rng(0).normal(size=(count, 3, 32, 32)).astype(np.float32)
        tensor = {"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel()}
        found[count] = orjson.dumps({"inputs": [tensor]}, option=orjson.OPT_SERIALIZE_NUMPY)
    return found


@contextmanager
def sides() -> Iterator[list[Side]]:
    with TemporaryDirectory() as folder:
        publish(Path(folder), publication())
        started = [Side(name, Path(folder)) for name in SIDES]
        try:
            for side in started:
                side.wait()
            yield started
        finally:
            for side in started:
                side.end()


def publication() -> Publication:
    """Return the paper's network for a day and a night."""
    signature = Signature.labelled((3, 32, 32), 10)
    arrays = models.arrays_of(models.build("cnn", (3, 32, 32), 10))
    return Publication(
        run="benchmark", slot=Slot(1, 0, 0, 0), strategy="mc-psgd", blocks=("day", "night"),
        predictors=(arrays, arrays), folded=(1, 1), config={}, model=ModelSpec.of("classification", "cnn", signature),
        schedule={"clock": "day: 08:00-20:00, night: 20:00-08:00", "timezone": "UTC"},
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: 2)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side and setting (default: 3)")
    parser.add_argument("--where", action="store_true", help="only say where a request's time goes")
    arguments = parser.parse_args()
    if arguments.where:
        return where()
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; {arguments.repeats} turns of {arguments.seconds:g} s\n"
    )
    print(
        "| connections | examples | side | requests a second | p99 ms | CPU ms | perennial / it, each pair of turns |"
    )
    print("|---|---|---|---|---|---|---|")
    with sides() as all_sides:
        for side in all_sides:
            # The first requests of a process are slow.
            side.turn(bodies()[1], 1, 0.5)
        for connections in CONNECTIONS:
            for count, body in bodies().items():
                compare(all_sides, connections, count, body, arguments)


def where(repeats: int = 100) -> None:
    """Print the CPU of each step of a request in our server, without HTTP."""
    with TemporaryDirectory() as folder:
        publish(Path(folder), publication())
        network = PredictorNetwork.of(load_predictor(folder, block="day"))
    torch.set_num_threads(1)
    print("| examples | bytes | JSON ms | numbers ms | network ms | answer ms |\n|---|---|---|---|---|---|")
    for count, body in bodies().items():
        spent = np.zeros(4)
        for _ in range(repeats):
            marks = [time.thread_time()]
            asked = tensors.read_request(body, None)
            marks.append(time.thread_time())
            x = tensors.examples(asked, network.signature, 4096)
            marks.append(time.thread_time())
            outputs = network.outputs(x)
            marks.append(time.thread_time())
            tensors.answer({}, asked, {"output": outputs[0]})
            marks.append(time.thread_time())
            spent += np.diff(marks)
        print(f"| {count} | {len(body)} | " + " | ".join(f"{one / repeats * 1e3:.3f}" for one in spent) + " |")


def compare(all_sides: list[Side], connections: int, count: int, body: bytes, arguments: argparse.Namespace) -> None:
    turns: dict[str, list[Turn]] = {side.name: [] for side in all_sides}
    for _ in range(arguments.repeats):
        for side in all_sides:
            turns[side.name].append(side.turn(body, connections, arguments.seconds))
    ours = turns["perennial"]
    for name, theirs in turns.items():
        ratios = [a.a_second / b.a_second for a, b in zip(ours, theirs, strict=True)]
        shown = "" if theirs is ours else f"{min(ratios):.1f} to {max(ratios):.1f}"
        middle = [statistics.median(getattr(turn, what) for turn in theirs) for what in ("a_second", "p99", "cpu")]
        columns = f"{middle[0]:,.0f} | {middle[1] * 1e3:.1f} | {middle[2] * 1e3:.2f} | {shown}"
        print(f"| {connections} | {count} | {name} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
