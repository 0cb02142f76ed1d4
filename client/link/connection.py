"""A device's way to a stock SuperLink: a node that speaks Flower's fleet API, without Flower's processes.

Stock Flower starts a SuperNode, an executor and, for every message, a new interpreter. Here one process pulls orders,
hands them to the ClientApp that is installed on the device, and pushes the replies. A message is a tree of parts, each
of which Flower moves in a request of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.app.message import remove_content_from_message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.serde import fab_from_proto, message_to_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from perennial.client.link.failures import Refused, Unreachable

# The least that Flower accepts: the server marks a silent node offline after twice this many seconds.
HEARTBEAT = 10.0
_TIMEOUT = 10.0


@dataclass(frozen=True)
class Announced:
    """An order that the server has named and not yet sent."""

    run_id: int
    tree: ObjectTree


class Connection:
    """A connection to a SuperLink's fleet API as one node. Every method raises ``Refused`` or ``Unreachable``.

    waits: ``pull`` answers at once, whether there is an order or not. beats_idle: the server asks for heartbeats also
    of a node that asks for orders.
    """

    waits, beats_idle, beat_every = False, True, 0.4 * HEARTBEAT

    def __init__(self, address: str, *, ca: Path | None, key: EllipticCurvePrivateKey | None) -> None:
        """``ca`` None: plain HTTP. ``key`` None: a new key, which the server may admit or refuse."""
        self._registered = key is not None
        private = key or generate_key_pairs()[0]
        self._public = public_key_to_bytes(private.public_key())
        self._client = FleetHttpClient.from_server_address(
            address,
            insecure=ca is None,
            root_certificates=ca.read_bytes() if ca else None,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        )
        # Silence, not duration: a slow upload is fine. Flower's 30 s would hold up the end of a process on a dead link.
        self._client._client.timeout = httpx.Timeout(_TIMEOUT)
        self._node = NodeProto()
        self._contexts: dict[int, Context] = {}

    def activate(self) -> int:
        """Go online; return the node id."""
        with _failures():
            if not self._registered:
                self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
                self._registered = True
            reply = self._client.ActivateNode(
                ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
            )
        self._node = NodeProto(node_id=reply.node_id)
        TaskIdentity.node_id = reply.node_id
        self._contexts.clear()
        return int(reply.node_id)

    def heartbeat(self) -> None:
        with _failures():
            reply = self._client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT)
            )
        if not reply.success:
            raise Refused("the server does not know this node", gone=True)

    def pull(self) -> Announced | None:
        """Return the next order, or None if there is none; a stock SuperLink names an order once only."""
        with _failures():
            reply = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not reply.messages_list:
            return None
        return Announced(reply.messages_list[0].metadata.run_id, reply.message_object_trees[0])

    def fetch(self, order: Announced, node_config: UserConfig) -> tuple[Message, Context]:
        """Return the order's message and context; may be called again after a failure."""
        run_id, tree = order.run_id, order.tree
        with _failures():
            context = self._context(run_id, node_config)
            contents = self._pull_parts(run_id, tree)
            # The order is here, whatever becomes of this; asked again after a failure, it might be gone.
            with contextlib.suppress(httpx.HTTPError):
                self._client.ConfirmMessageReceived(
                    ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=tree.object_id)
                )
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        # Flower's Message constructor reads the sender of the reply from here.
        TaskIdentity.run_id, TaskIdentity.task_id = run_id, 0
        return message, context

    def push(self, reply: Message, seconds: float) -> None:
        """Send the reply, of which the ClientApp took ``seconds``; may be called again after a failure."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        run_id = reply.metadata.run_id
        with no_object_id_recompute(), _failures():
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            answer = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[seconds],
                )
            )
            wanted = set(answer.objects_to_push)
            parts = ((object_id, objects[object_id].deflate()) for object_id in objects if object_id in wanted)
            self._push_parts(run_id, answer.session_id, parts)

    def published(self, path: str) -> bytes | None:
        raise Refused("a stock SuperLink offers no predictors", gone=False)

    def close(self, *, unregister: bool) -> None:
        """Go offline and disconnect; never raises."""
        try:
            if self._node.node_id:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
                if unregister:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self._node.node_id))
        except (httpx.HTTPError, RuntimeError):
            pass  # The server is away; it marks the node offline by itself.
        self._client.close()

    def _pull_parts(self, run_id: int, tree: ObjectTree) -> dict[str, bytes]:
        """Return the content of all parts of a message, by object id."""
        contents: dict[str, bytes] = {}
        for part in iterate_object_tree(tree):
            if part.object_id in contents:
                continue
            reply = self._client.PullObject(PullObjectRequest(node=self._node, run_id=run_id, object_id=part.object_id))
            if reply.object_found and not reply.object_available:
                # The server names an order before it has stored its last part.
                raise Unreachable("the order is not complete yet")
            if not reply.object_available:
                raise Refused("the server withdrew an order while it was being fetched", gone=False)
            contents[part.object_id] = reply.object_content
        return contents

    def _push_parts(self, run_id: int, session: str, parts: Iterable[tuple[str, bytes]]) -> None:
        """Send the parts, (object id, content) each, of a message that was announced in ``session``."""
        for object_id, content in parts:
            request = PushObjectRequest(node=self._node, run_id=run_id, session_id=session)
            request.object_id, request.object_content = object_id, content
            self._client.PushObject(request)

    def _context(self, run_id: int, node_config: UserConfig) -> Context:
        if run_id not in self._contexts:
            run = run_from_proto(self._client.GetRun(GetRunRequest(node=self._node, run_id=run_id)).run)
            config = dict(run.override_config)
            if run.fab_hash:  # A run submitted by `flwr run`: the app's defaults lie in its bundle.
                fab = self._client.GetFab(GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=run_id)).fab
                config = dict(get_fused_config_from_fab(fab_from_proto(fab).content, run))
            # One run at a time: a node that serves for months must not collect contexts.
            self._contexts = {
                run_id: Context(run_id, self._node.node_id, node_config, RecordDict(), config, run.series_id)
            }
        return self._contexts[run_id]


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Turn httpx's errors into ``Refused`` and ``Unreachable``."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, flower = error.response.status_code, FlowerError.from_json(error.response.text)
        if status >= 500:  # Also of a server that is being stopped.
            raise Unreachable(f"the server answered {status}") from error
        text = f"{flower.message} [{flower.code}]" if flower else f"HTTP {status}"
        raise Refused(text, gone=status == 401) from error
    except httpx.HTTPError as error:
        raise Unreachable(str(error) or type(error).__name__) from error
