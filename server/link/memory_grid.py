"""A Grid whose nodes are calls of a ClientApp in this process: for tests and examples, with nothing to wait for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Context, Message, RecordDict

from perennial.server.link.local_grid import FIRST_NODE_ID, RUN_ID, LocalGrid, app_raised, named, take_identity


class MemoryGrid(LocalGrid):
    """Nodes that answer at once, in the order in which they are asked; each has a ``context.state`` of its own.

    sent: the messages of every exchange so far. Clients get copies of them, as over a network.
    """

    def __init__(self, app: Callable[[Message, Context], Message], nodes: int = 10) -> None:
        take_identity()
        self._app = app
        ids = range(FIRST_NODE_ID, FIRST_NODE_ID + nodes)
        self.contexts = {
            node: Context(RUN_ID, node, {"partition-id": index}, RecordDict(), {}) for index, node in enumerate(ids)
        }
        self.sent: list[list[Message]] = []
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        self.sent.append(listed)
        ids = [named(message) for message in listed]
        self._replies |= {message_id: self._reply(one) for message_id, one in zip(ids, listed, strict=True)}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Sequence[Message]:
        return list(self.pull_messages(self.push_messages(messages)))

    def _reply(self, message: Message) -> Message:
        received = copy.deepcopy(message)
        try:
            return self._app(received, self.contexts[message.metadata.dst_node_id])
        # What a SuperNode does with a ClientApp that raises, whatever it raises.
        except Exception as error:
            return app_raised(message, error)
