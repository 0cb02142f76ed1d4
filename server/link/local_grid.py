"""What a Grid without a SuperLink needs of Flower's internals: an identity, names for messages, errors as replies."""

from __future__ import annotations

from uuid import uuid4

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity

RUN_ID = 1
_SERVER_ID = 1
# The ids before it are Flower's own.
FIRST_NODE_ID = 2


def take_identity() -> None:
    """Let this process make messages as the server of run ``RUN_ID``: Flower's constructor reads the sender here."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, _SERVER_ID, 0


def named(message: Message) -> str:
    """Give the message an id, as a SuperLink would, and return it."""
    message.metadata.__dict__["_message_id"] = str(uuid4())
    return message.metadata.message_id


def app_raised(message: Message, error: Exception) -> Message:
    """Return what Flower answers for a ClientApp that raised ``error``."""
    reason = f"{type(error).__name__}: {error}"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def node_died(message: Message, reason: str) -> Message:
    """Return what stands for the answer of a node that died at its work."""
    return Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message)


class LocalGrid(Grid):
    """The part of a Grid that is the same for every grid in one process: it has one run, its own."""

    def set_run(self, run: FlowerRun) -> None:
        raise RuntimeError(f"a {type(self).__name__} has one run, its own")

    @property
    def run(self) -> FlowerRun:
        return FlowerRun.create_empty(RUN_ID)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
