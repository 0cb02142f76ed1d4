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


def take_identity(run_id: int = RUN_ID) -> None:
    """Let this process make messages as the server of a run: Flower's constructor reads the sender here."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, _SERVER_ID, 0


def named(message: Message, name: str = "") -> str:
    """Give the message an id, as a SuperLink would, and return it."""
    message.metadata.__dict__["_message_id"] = name or str(uuid4())
    return message.metadata.message_id


def app_raised(message: Message, error: Exception) -> Message:
    """Return what Flower answers for a ClientApp that raised ``error``."""
    reason = f"{type(error).__name__}: {error}"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def node_died(message: Message, reason: str) -> Message:
    """Return what stands for the answer of a node that died at its work."""
    return Message(Error(ErrorCode.UNKNOWN, reason), reply_to=message)


def node_left(message: Message, reason: str) -> Message:
    """Return what stands for the answer of a node that is not there (any more)."""
    return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)


def bad_reply(message: Message, reason: str) -> Message:
    """Return what stands for an answer that is not taken, or did not come in time."""
    return Message(Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason), reply_to=message)


class LocalGrid(Grid):
    """The part of a Grid that is the same for every grid in one process: it has one run, its own."""

    run_id = RUN_ID

    def set_run(self, run: FlowerRun) -> None:
        raise RuntimeError(f"a {type(self).__name__} has one run, its own")

    @property
    def run(self) -> FlowerRun:
        return FlowerRun.create_empty(self.run_id)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
