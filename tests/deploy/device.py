"""flower-client with a device that misbehaves: ``device.py BEHAVIOUR ARGUMENTS...``"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from perennial.client import app as client_app
from perennial.client import cli

App = Callable[[Message, Context], Message]
HONEST: App = client_app.app
# The hostile device does one of these a round.
NAN_ROUND, SHAPE_ROUND, COUNT_ROUND, LATE_ROUND, FORGED_ROUND = 2, 3, 4, 5, 7
# Longer than the rounds of the run that has it.
LATE_SECONDS = 12.0
SLOW_SECONDS = 0.8
# Of an outsider: the clients that it claims.
GREED = list(range(4, 104))
THROWN_ROUND, HUGE_FLOATS = 3, 25_000_000


def slow(message: Message, context: Context) -> Message:
    time.sleep(SLOW_SECONDS)
    return HONEST(message, context)


def impostor(message: Message, context: Context) -> Message:
    """Claim a client that another device hosts."""
    reply = HONEST(message, context)
    if message.metadata.message_type == "query":
        record = ConfigRecord({**reply.content["node"], "clients": [0]})
        return Message(RecordDict({"node": record}), reply_to=message)
    return reply


def hostile(message: Message, context: Context) -> Message:
    reply = HONEST(message, context)
    if message.metadata.message_type != "train":
        return reply
    number = message.content["order"]["server-round"]
    if number == LATE_ROUND:
        time.sleep(LATE_SECONDS)
    if number == FORGED_ROUND:
        reply.metadata.__dict__["_reply_to_message_id"] = str(uuid4())
    if number == NAN_ROUND:
        return changed(reply, message, lambda array: array * np.float32("nan"))
    if number == SHAPE_ROUND:
        return changed(reply, message, lambda array: array[..., :-1])
    if number == COUNT_ROUND:
        update = MetricRecord({**reply.content["update"], "num-clients": 4})
        return Message(RecordDict({**reply.content, "update": update}), reply_to=message)
    return reply


def claiming(clients: list[int], answer: App) -> App:
    """Return an app that claims ``clients`` in the place of its own, and answers orders by ``answer``."""

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            record = ConfigRecord({**HONEST(message, context).content["node"], "clients": clients})
            return Message(RecordDict({"node": record}), reply_to=message)
        return answer(message, context)

    return app


def failing(message: Message, context: Context) -> Message:
    raise RuntimeError("no")


def huge(message: Message, context: Context) -> Message:
    arrays = ArrayRecord({"mixed": Array(np.zeros(HUGE_FLOATS, np.float32))})
    return Message(RecordDict({"mixed": arrays}), reply_to=message)


def thrown(message: Message, context: Context) -> Message:
    """Train honestly on the shards of client 0, whatever client was claimed, and once answer with 1e30."""
    message.content["order"]["clients"] = [0]
    reply = HONEST(message, context)
    order = message.content["order"]
    if message.metadata.message_type == "train" and order["server-round"] == THROWN_ROUND:
        return changed(reply, message, lambda array: np.full_like(array, 1e30))
    return reply


BEHAVIOURS: dict[str, App] = {
    "slow": slow,
    "impostor": impostor,
    "hostile": hostile,
    "greedy": claiming(GREED, failing),
    "huge": claiming(GREED[:1], huge),
    "thrown": claiming(GREED[:1], thrown),
}


def changed(reply: Message, message: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    arrays = {name: change(array.numpy()) for name, array in reply.content["mixed"].items()}
    mixed = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    return Message(RecordDict({**reply.content, "mixed": mixed}), reply_to=message)


if __name__ == "__main__":
    client_app.app = BEHAVIOURS[sys.argv[1]]  # type: ignore[assignment]
    raise SystemExit(cli.main(sys.argv[2:]))
