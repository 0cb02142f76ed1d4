"""A device or a server in trouble, by the arguments BEHAVIOUR MINUTES ARGUMENTS...

MINUTES: by which its clock is wrong. BEHAVIOUR: honest, hostile (every update is wrong in some way), twice (each reply
is sent twice), again (each reply is followed by the one before), late (each reply comes half a second later), or
server (``flower-server``). Whoever misbehaves says so (``STRUCK``) each time.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict

from perennial.client import app as client_app
from perennial.client import cli as client
from perennial.client.link.failures import Refused, Unreachable
from perennial.client.link.fleet_connection import FleetConnection
from perennial.server import cli as server
from perennial.server.run.progress import TerminalProgress
from tests.chaos.fault_plan import STRUCK
from tests.chaos.wrong_clock import put_wrong
from tests.deploy.device import changed

HONEST = client_app.app
_TURNS = itertools.count()
_LATE_SECONDS = 0.5


def hostile(message: Message, context: Context) -> Message:
    reply: Message = HONEST(message, context)
    if message.metadata.message_type != "train":
        return reply
    turn = next(_TURNS) % 4
    print(f"{STRUCK}an update of kind {turn}", flush=True)
    if turn == 0:
        return changed(reply, message, lambda array: array * np.float32("nan"))
    if turn == 1:
        return changed(reply, message, lambda array: array[..., :-1])
    if turn == 2:
        update = MetricRecord({**reply.content["update"], "num-clients": 4})
        return Message(RecordDict({**reply.content, "update": update}), reply_to=message)
    raise ValueError("no update today")


def late(message: Message, context: Context) -> Message:
    print(f"{STRUCK}late", flush=True)
    time.sleep(_LATE_SECONDS)
    reply: Message = HONEST(message, context)
    return reply


def send_more(*, again: bool) -> None:
    """Let each reply be sent twice, or be followed by the one before."""
    push, before = FleetConnection.push, list[Message]()

    def pushed(self: FleetConnection, reply: Message, seconds: float) -> None:
        push(self, reply, seconds)
        before.append(reply)
        more, said = before[0] if again else reply, "it was taken"
        del before[:-1]
        if again and more is reply:
            return
        try:
            push(self, more, seconds)
        except (Refused, Unreachable) as error:
            # Refused it may be; counted a second time it must not be.
            said = str(error)
        print(f"{STRUCK}sent a reply more: {said}", flush=True)

    FleetConnection.push = pushed  # type: ignore[method-assign]


def hold_rounds(limit: Path) -> None:
    """Let no round be over that is beyond the number in the file ``limit``: faults come by rounds, not by seconds."""
    shown = TerminalProgress.round_done

    def round_done(self: TerminalProgress, record: Any, *more: Any) -> None:
        shown(self, record, *more)
        while record.slot.server_round >= int(limit.read_text()):
            time.sleep(0.02)

    TerminalProgress.round_done = round_done  # type: ignore[method-assign]


def main(arguments: list[str]) -> int:
    behaviour, minutes, *rest = arguments
    put_wrong(float(minutes))
    if behaviour == "server":
        hold_rounds(Path(rest[rest.index("--state-dir") + 1]).with_name("limit"))
        return server.main(rest)
    if behaviour in ("twice", "again"):
        send_more(again=behaviour == "again")
    client_app.app = {"hostile": hostile, "late": late}.get(behaviour, HONEST)  # type: ignore[assignment]
    return client.main(rest)
