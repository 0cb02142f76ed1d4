"""Many devices in one process: each has its key, its connection and its thread, and answers by the real protocol.

    python -m benchmarks.devices --server HOST:PORT --ca ca.crt --first 0 --count 100

They train nothing: an update is the model received, moved by a little that is the device's own. Says on standard
output when all are connected, and how many orders were answered when standard input is closed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, derive_private_key
from flwr.app import Message, MessageType, RecordDict

from perennial.client.link.connect import connect
from perennial.client.link.failures import Refused, Unreachable
from perennial.common.wire.chains import MIXED
from perennial.common.wire.layout import Layout
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
        self.connected = self.answered = self.dropped = self.away = 0

    def run(self, number: int) -> None:
        failures, known = 0, False
        while not self.stop.is_set():
            connection, rest = None, 0.0
            try:
                connection = connect(self._address, ca=self._ca, key=key_of(number) if self._ca else None)
                connection.activate()
                failures = 0
                if not known:
                    self._count("connected")
                    known = True
                while not self.stop.is_set():
                    if order := connection.pull():
                        self._answer(connection, order, number)
            except Unreachable as error:
                rest = error.retry
                self._count("away")
            except Refused:
                self._count("dropped")
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
        while not self.stop.is_set():
            try:
                connection.push(reply, 0.1)  # type: ignore[attr-defined]
            except Unreachable as error:
                self.stop.wait(max(error.retry, 0.5))
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
    for number in range(options.first, options.first + options.count):
        threading.Thread(target=devices.run, args=(number,), daemon=True).start()
    while devices.connected < options.count:
        time.sleep(0.05)
    print(f"connected {devices.connected} in {time.monotonic() - start:.2f}", flush=True)
    sys.stdin.read()
    print(f"answered {devices.answered}, dropped {devices.dropped}, away {devices.away}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
