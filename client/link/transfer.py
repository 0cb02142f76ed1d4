"""The parts of messages between a node and its server: all of them in one request, or one by one as Flower does it."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient

from perennial.client.link.failures import Refused, Unreachable
from perennial.common.wire import parts

ProtobufMessage = PullMessagesRequest | PullObjectRequest | PushObjectRequest


class Transfer:
    """Uses the routes of ``parts`` where the server has them. waits: it has, so a question waits for a message there.

    Raises httpx's errors, ``Refused`` and ``Unreachable``.
    """

    def __init__(self, client: FleetHttpClient) -> None:
        self._client = client
        self.waits = True

    def pull_messages(self, node: NodeProto) -> PullMessagesResponse:
        """Return the messages that the server has for the node, named and not yet sent."""
        head = PullMessagesRequest(node=node)
        answer = self._post(parts.WAIT, head, head.SerializeToString())
        return PullMessagesResponse.FromString(answer) if self.waits else self._client.PullMessages(head)

    def pull_parts(self, node: NodeProto, run_id: int, tree: ObjectTree) -> dict[str, bytes]:
        """Return the content of all parts of a message, by object id."""
        head = PullObjectRequest(node=node, run_id=run_id, object_id=tree.object_id)
        contents = dict(parts.unpack(self._post(parts.PULL, head, head.SerializeToString())))
        for part in iterate_object_tree(tree):
            if part.object_id not in contents:
                one = PullObjectRequest(node=node, run_id=run_id, object_id=part.object_id)
                reply = self._client.PullObject(one)
                if reply.object_found and not reply.object_available:
                    # The server names an order before it has stored its last part.
                    raise Unreachable("the order is not complete yet")
                if not reply.object_available:
                    raise Refused("the server withdrew an order while it was being fetched", gone=False)
                contents[part.object_id] = reply.object_content
        return contents

    def push_parts(self, node: NodeProto, run_id: int, session: str, pairs: Iterable[tuple[str, bytes]]) -> None:
        """Send the parts, (object id, content) each, of a message that was announced in ``session``."""
        head = PushObjectRequest(node=node, run_id=run_id, session_id=session)
        for some in parts.split(pairs):
            self._post(parts.PUSH, head, parts.pack([(parts.NOBODY, head.SerializeToString()), *some]))
            if not self.waits:
                for object_id, content in some:
                    one = PushObjectRequest(object_id=object_id, object_content=content)
                    one.MergeFrom(head)
                    self._client.PushObject(one)

    def _post(self, path: str, message: ProtobufMessage, body: bytes) -> bytes:
        """Return the answer of one of the routes of ``parts``; nothing if the server does not have them."""
        if not self.waits:
            return b""
        http = self._client._client
        request = http.build_request(
            "POST", self._client._base_url + path, content=body, headers={"content-type": parts.MEDIA_TYPE}
        )
        response = self._client._send(ProtobufRequestContext(path, message, request))
        if response.status_code in (404, 405):
            # A stock SuperLink, or a proxy before one.
            self.waits = False
            return b""
        response.raise_for_status()
        return response.content
