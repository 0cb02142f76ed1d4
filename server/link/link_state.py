"""Flower's link state in memory, with replies kept apart from orders, and orders that are named until they are fetched.

Flower keeps the parts of all messages in one store, under the ids and with the children that whoever announces them
claims. A node could so spoil parts that the server sends to everybody. Here the store holds what the server sends,
and every reply has parts of its own.
"""

from __future__ import annotations

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.supercore.inflatable.inflatable_object import get_object_id
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import FederationManager

from perennial.server.link.arriving import Allowance, ArrivingReply, names


class LinkState(InMemoryLinkState):
    """Link state in which a reply is taken only for an order that ``expect`` has named, until ``forget``."""

    def __init__(self, federation_manager: FederationManager, object_store: InMemoryObjectStore) -> None:
        super().__init__(federation_manager, object_store)
        self._parts = object_store
        self._replies: dict[str, ArrivingReply] = {}
        # By the name of the upload, a secret between the node and the server.
        self._uploads: dict[str, ArrivingReply] = {}

    def expect(self, order_id: str, allowance: Allowance) -> None:
        """Take one reply to an order that is about to be stored."""
        with self.lock:
            self._replies[order_id] = ArrivingReply(allowance)

    def reply_to(self, order_id: str) -> ArrivingReply | None:
        """Return the reply to an order, as far as it is there."""
        return self._replies.get(order_id)

    def forget(self, order_id: str) -> None:
        """Drop an order, its parts and the reply to it; what is still being sent of the reply finds no place."""
        with self.lock:
            if reply := self._replies.pop(order_id, None):
                self._uploads.pop(reply.upload, None)
            self.delete_messages({order_id})
            self._parts.delete(order_id)

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """Return orders to a node, also those that it was told of and has neither fetched nor answered.

        A node asks when it has nothing in hand: it never heard of them, since the connection broke in between.
        """
        with self.lock:
            for order_id, order in self.message_ins_store.items():
                fetched = order_id not in self._parts
                answered = order_id in self.message_ins_id_to_message_res_id
                if order.metadata.dst_node_id == node_id and not fetched and not answered:
                    order.metadata.delivered_at = ""
            return super().get_message_ins(node_id, limit, run_id=run_id)

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        order_id = message.metadata.reply_to_message_id
        if not order_id:
            stored, missing = super().store_message_and_object_tree(message, object_tree, session_id)
            if not stored:
                self._cleanup_push_session(session_id, cleanup_messages=False)
            return stored, missing
        ids = names(object_tree)
        # Of Flower's session only the name is used; it would be kept for ever.
        self._cleanup_push_session(session_id, cleanup_messages=False)
        with self.lock:
            reply = self._replies.get(order_id)
            # Asks also whether the order is this node's.
            if self.store_message_res(message) is None or reply is None:
                return False, []
            self._uploads.pop(reply.upload, None)
            reply.upload = session_id
            self._uploads[session_id] = reply
            return True, reply.announce(message.metadata.message_id, ids)

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        if (reply := self._uploads.get(session_id)) is None:
            return super().store_object(run_id, session_id, object_id, object_content)
        if get_object_id(object_content) != object_id:
            return False
        with self.lock:
            return reply.put(object_id, object_content)

    def preregister_object_tree(self, object_tree: ObjectTree, session_id: str) -> list[str]:
        # In one piece: the confirmation of another order may otherwise delete a part that both share, half-way.
        with self._lock_object_push_sessions, self._parts.lock_store:
            return super().preregister_object_tree(object_tree, session_id)
