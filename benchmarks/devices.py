"""Many devices in one process: each has its key, its connection and its thread, and answers by the real protocol.

    python -m benchmarks.devices --server HOST:PORT --ca ca.crt --first 0 --count 100

They train nothing: an update is the model received, moved by a little that is the device's own. Says on standard
output when all are connected. Standard input tells them what to do, a line each:

    restart             all lose their connections and sessions at once, and come anew
    silence FRACTION    so many of them say nothing any more, as if their network was gone
    count               print what was counted: orders answered; refusals (dropped) with their reasons; requests that
                        found nobody (away) or were told to come back later; and replies that came too late
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, derive_private_key
from flwr.app import Message, MessageType, RecordDict

from perennial.client.link.connect import connect
from perennial.client.link.failures import Refused, Unreachable
from perennial.client.link.fleet_connection import FleetConnection
from perennial.common.wire.chains import MIXED
from perennial.common.wire.layout import Layout
from perennial.common.wire.link import BEAT_EVERY
from perennial.common.wire.orders import read_models, read_order
from perennial.common.wire.pacing import backoff
from perennial.common.wire.protocol import Identity, write_identity
from perennial.common.wire.updates import Losses, Update, write_losses, write_update

BLOCKS = 2
_STACK = 2**18


def key_of(number: int) -> EllipticCurvePrivateKey:
    """Return the key of a device, the same in every process. For benchmarks only."""
    return derive_private_key(2**200 + number, SECP384R1())


class Devices:
    """Counts what its devices do."""

    def __init__(self, address: str, ca: Path | None, seconds: float) -> None:
        self._address, self._ca, self._seconds = address, ca, seconds
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self.connections: dict[int, object] = {}
        self._busy: set[int] = set()
        self._restarts = self._silent = 0
        self.connected = self.answered = self.dropped = self.away = self.later = self.late = 0
        # Why the server refused a device, and how often.
        self.reasons: Counter[str] = Counter()

    def restart(self) -> None:
        """Let all devices lose what a process loses when it is killed."""
        self._restarts += 1
        for connection in list(self.connections.values()):
            if isinstance(connection, FleetConnection):
                connection._session = None
                with contextlib.suppress(AttributeError, OSError):
                    connection._http._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

    def beat(self) -> None:
        """Say of every device that has an order in hand that it lives, for ever."""
        while not self.stop.wait(BEAT_EVERY):
            for number in list(self._busy):
                connection = self.connections[number]
                # A request under way says so by itself.
                if isinstance(connection, FleetConnection) and not connection._lock.locked():
                    with contextlib.suppress(Refused, Unreachable):
                        connection.heartbeat()

    def silence(self, below: int) -> None:
        """Let the devices with a number below this answer nothing any more."""
        self._silent = below

    def run(self, number: int) -> None:
        failures, known = 0, False
        while not self.stop.is_set():
            connection, rest, before = None, 0.0, self._restarts
            try:
                connection = connect(self._address, ca=self._ca, key=key_of(number) if self._ca else None)
                connection.activate()
                self.connections[number] = connection
                failures = 0
                if not known:
                    self._count("connected")
                    known = True
                while not self.stop.is_set():
                    if order := connection.pull():
                        self._busy.add(number)
                        self._answer(connection, order, number)
                        self._busy.discard(number)
            except (Unreachable, Refused) as error:
                if self._restarts > before:
                    failures = 0
                    continue
                rest = getattr(error, "retry", 0.0)
                if isinstance(error, Refused):
                    self.reasons[str(error)] += 1
                self._count("dropped" if isinstance(error, Refused) else "later" if rest else "away")
            finally:
                if connection:
                    connection.close(unregister=False)
            self.stop.wait(max(rest, backoff(failures, random.random())))
            failures += 1

    def _answer(self, connection: object, order: object, number: int) -> None:
        message, _ = connection.fetch(order, {})  # type: ignore[attr-defined]
        if self._seconds and message.metadata.message_type == MessageType.TRAIN:
            self.stop.wait(self._seconds * random.uniform(0.5, 1.5))
        reply = Message(content(message, number), reply_to=message)
        if number < self._silent:
            self._busy.discard(number)
            self.stop.wait()
        while not self.stop.is_set():
            try:
                connection.push(reply, 0.1)  # type: ignore[attr-defined]
            except Unreachable as error:
                self._count("later" if error.retry else "away")
                self.stop.wait(max(error.retry, 0.5))
            except Refused as error:
                if error.gone:
                    raise
                # As flower-client does: the order is dropped, and the next one waited for.
                return self._count("late")
            else:
                return self._count("answered")

    def _count(self, what: str) -> None:
        with self._lock:
            setattr(self, what, getattr(self, what) + 1)


def content(message: Message, number: int) -> RecordDict:
    """Return what the device answers, which is another than that of any other device."""
    if message.metadata.message_type == MessageType.QUERY:
        return write_identity(Identity((number,), BLOCKS))
    order = read_order(message.content)
    layout = Layout.of({name: array.numpy() for name, array in message.content[MIXED].items()})
    models = read_models(message.content, layout)
    losses = Losses(1, 10, **dict.fromkeys(models, 1.0 + number * 1e-06))
    if message.metadata.message_type == MessageType.EVALUATE:
        return write_losses(losses)
    moved = {chain: model + np.float32(1e-6 * (number + 1)) for chain, model in models.items()}
    judged = losses if order.report_loss else Losses(1, 10)
    return write_update(Update(moved, dict.fromkeys(models, 1.0), judged), layout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--server", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", type=Path, metavar="FILE")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0, help="that training seems to take, more or less")
    options = parser.parse_args()
    threading.stack_size(_STACK)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    devices = Devices(options.server, options.ca, options.seconds)
    start = time.monotonic()
    threading.Thread(target=devices.beat, daemon=True).start()
    for number in range(options.first, options.first + options.count):
        threading.Thread(target=devices.run, args=(number,), daemon=True).start()
    while devices.connected < options.count:
        time.sleep(0.05)
    print(f"connected {devices.connected} in {time.monotonic() - start:.2f}", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "restart":
            devices.restart()
        elif word == "silence":
            devices.silence(options.first + round(float(rest[0]) * options.count))
        elif word == "count":
            counted = ("answered", "dropped", "away", "later", "late")
            print(
                json.dumps({**{name: getattr(devices, name) for name in counted}, "reasons": devices.reasons}),
                flush=True,
            )
    os._exit(0)


if __name__ == "__main__":
    main()
