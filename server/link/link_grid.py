"""Flower's Grid on the link state of this process: no HTTP, no polls of three seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.constant import NodeStatus
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import Run as FlowerRun

from perennial.server.link.arriving import Allowance, BadReply
from perennial.server.link.link_state import LinkState

LOG = logging.getLogger("perennial")
# Between looks for orders whose node went offline.
_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class _Sent:
    """An order under way, and when its node had last come online."""

    order: Message
    online_since: str


class LinkGrid(Grid):
    """Flower's Grid, reading and writing the link state directly."""

    def __init__(self, state: LinkState, run: FlowerRun) -> None:
        self._state, self._run = state, run
        self._looked = 0.0
        self._sent: dict[str, _Sent] = {}

    def set_run(self, run: FlowerRun) -> None:
        self._run = run

    @property
    def run(self) -> FlowerRun:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return self._state.get_nodes(self._run.run_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Return the ids of the messages; an empty string for one whose node is not known any more."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        order_id = message.metadata.__dict__["_message_id"] = message.object_id
        self._state.expect(order_id, Allowance.of(message))
        with no_object_id_recompute():
            objects, tree = get_all_nested_objects(message), get_object_tree(message)
            session = self._state.start_session(self._run.run_id)
            stored, missing = self._state.store_message_and_object_tree(
                remove_content_from_message(message), tree, session
            )
            if not stored:
                self._state.forget(order_id)
                return ""
            for object_id in missing:
                self._state.store_object(self._run.run_id, session, object_id, objects[object_id].deflate())
        node_id = message.metadata.dst_node_id
        self._sent[order_id] = _Sent(message, self._online_since([node_id]).get(node_id, ""))
        return order_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are complete, and errors for orders that are lost; never wait for one on its way."""
        orders = list(message_ids)
        replies = [reply for order_id in orders if (reply := self._take(order_id))]
        return replies + self._lost(orders)

    def _take(self, order_id: str) -> Message | None:
        """Return the reply to an order once all its parts are there; an error where they cannot be read."""
        reply = self._state.reply_to(order_id)
        if reply is None or not reply.ready:
            return None
        try:
            message = reply.read()
            if message.metadata.reply_to_message_id != order_id:
                raise BadReply("the reply is to another order")
        except Exception as error:  # Whatever a node sends, the server must live on.
            LOG.debug("a reply cannot be read", exc_info=error)
            reason = str(error) if isinstance(error, BadReply) else "the reply cannot be read"
            return self._failed(order_id, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        self.forget([order_id])
        return message

    def _failed(self, order_id: str, code: int, reason: str) -> Message:
        """Return an error in place of a reply, and forget the order."""
        reply = Message(Error(code, reason), reply_to=self._sent[order_id].order)
        self.forget([order_id])
        return reply

    def _lost(self, orders: Iterable[str]) -> list[Message]:
        """Return an error for every order whose node was offline, or has been since: nobody works on it."""
        if time.monotonic() - self._looked < _SECONDS_BETWEEN_LOOKS:
            return []
        self._looked = time.monotonic()
        sent = {order_id: self._sent[order_id] for order_id in orders if order_id in self._sent}
        online = self._online_since([one.order.metadata.dst_node_id for one in sent.values()])
        lost = [
            order_id
            for order_id, one in sent.items()
            if not one.online_since or online.get(one.order.metadata.dst_node_id) != one.online_since
        ]
        reason = "the node went offline before it had answered"
        return [self._failed(order_id, ErrorCode.NODE_UNAVAILABLE, reason) for order_id in lost]

    def _online_since(self, nodes: list[int]) -> dict[int, str]:
        found = self._state.get_node_info(node_ids=nodes, statuses=[NodeStatus.ONLINE])
        return {node.node_id: node.last_activated_at for node in found}

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop orders, and replies to them: Flower keeps the models of an order that nobody fetched for ever."""
        for order_id in list(message_ids):
            self._sent.pop(order_id, None)
            self._state.forget(order_id)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError("perennial.server.link.eager_grid.EagerGrid sends and receives")
