"""flower-client with a device that misbehaves: ``device.py BEHAVIOUR ARGUMENTS...``"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

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
        reply.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id ^ 1
    if number == NAN_ROUND:
        return changed(reply, message, lambda array: array * np.float32("nan"))
    if number == SHAPE_ROUND:
        return changed(reply, message, lambda array: array[..., :-1])
    if number == COUNT_ROUND:
        update = MetricRecord({**reply.content["update"], "num-clients": 4})
        return Message(RecordDict({**reply.content, "update": update}), reply_to=message)
    return reply


def changed(reply: Message, message: Message, change: Callable[[np.ndarray], np.ndarray]) -> Message:
    arrays = {name: change(array.numpy()) for name, array in reply.content["mixed"].items()}
    mixed = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    return Message(RecordDict({**reply.content, "mixed": mixed}), reply_to=message)


if __name__ == "__main__":
    client_app.app = {"slow": slow, "impostor": impostor, "hostile": hostile}[sys.argv[1]]  # type: ignore[assignment]
    raise SystemExit(cli.main(sys.argv[2:]))
