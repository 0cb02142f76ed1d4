"""A served fleet and devices in one process: real requests over loopback, with TLS and keys."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from perennial.client.kept_predictors import KeptPredictors
from perennial.client.link.fleet_connection import FleetConnection
from perennial.client.node import Node
from perennial.server.link.fleet import Fleet, RunFacts
from perennial.server.link.fleet_app import FleetApp, Offer
from perennial.server.link.fleet_grid import FleetGrid
from perennial.server.link.fleet_run import der
from perennial.server.link.listener import Listener
from perennial.server.link.local_grid import take_identity

CERTIFICATES = Path(__file__).parents[2] / "deploy" / "certificates.sh"
App = Callable[[Message, Context], Message]


def make_tls(folder: Path) -> Path:
    subprocess.run([CERTIFICATES, folder, "server.example"], check=True, stdout=subprocess.DEVNULL)
    return folder


class Server:
    """A fleet behind a listener, and the grid that reaches it."""

    def __init__(self, tls: Path, offer: Offer | None = None) -> None:
        self.tls = tls
        self.fleet = Fleet(RunFacts({"cycles": 2}), certificate=der(tls / "server.crt"))
        self.app = FleetApp(self.fleet, offer=offer)
        self.stop = threading.Event()
        take_identity(self.fleet.run.id)
        self.grid = FleetGrid(self.fleet, stop=self.stop)
        self.listener = Listener(self.app, "127.0.0.1", 0, cert=tls / "server.crt", key=tls / "server.key")
        self.address = f"127.0.0.1:{self.listener.port}"
        self._made: list[FleetConnection] = []
        self._threads: list[threading.Thread] = []

    def connection(self, key: EllipticCurvePrivateKey | None = None, *, register: bool = True) -> FleetConnection:
        key = key or generate_private_key(SECP256R1())
        if register:
            self.fleet.register(key.public_key())
        self._made.append(FleetConnection(self.address, ca=self.tls / "ca.crt", key=key))
        return self._made[-1]

    def close(self) -> None:
        self.fleet.finish()
        self.listener.stop()
        for thread in self._threads:
            thread.join(10)
        for connection in self._made:
            connection._http.close()

    @contextmanager
    def device(
        self, app: App, key: EllipticCurvePrivateKey | None = None, kept: KeptPredictors | None = None
    ) -> Iterator[list[str]]:
        """A node that answers by ``app``, in a thread; yields what it says."""
        stop, said = threading.Event(), list[str]()
        node = Node(
            lambda: self.connection(key), app, {"data": "here"}, stop=stop, say=said.append, keyed=True, kept=kept
        )
        thread = threading.Thread(target=node.serve, daemon=True)
        thread.start()
        self._threads.append(thread)
        try:
            yield said
        finally:
            # It ends when the server does.
            stop.set()

    def listener_loop(self) -> asyncio.AbstractEventLoop:
        assert self.fleet._loop
        return self.fleet._loop

    def nothing_left(self) -> bool:
        """Whether the server holds no order, no reply and no byte of one."""
        return len(self.fleet.state) == self.app.hall.used == len(self.grid._sent) == 0


@contextmanager
def served(tls: Path, offer: Offer | None = None) -> Iterator[Server]:
    server = Server(tls, offer)
    server.listener.start()
    try:
        yield server
    finally:
        server.close()


def order(node: int, *, size: int = 1000, ttl: float = 60.0) -> Message:
    arrays = ArrayRecord({f"layer-{i}": Array(np.full(size, i, np.float32)) for i in range(5)})
    return Message(RecordDict({"mixed": arrays, "order": ConfigRecord({"round": 1})}), node, "train", ttl=ttl)


def plus_one(message: Message, _: Context) -> Message:
    arrays = {name: Array(array.numpy() + 1) for name, array in message.content["mixed"].items()}
    return Message(RecordDict({"mixed": ArrayRecord(arrays)}), reply_to=message)
