"""The server side of Flower without its processes: fleet API, state and grid in one interpreter.

Stock Flower runs the ServerApp in a process of its own, behind HTTP and polls of three seconds. Here the application
that nodes talk to is built from Flower's own fleet router alone (control and runtime APIs do not exist in it), and the
grid reads and writes the link state that the router serves from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from fastapi import Depends, FastAPI, HTTPException, Request
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, SubStatus
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.routers import health
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from common.flower141.routes import Doorbell
from common.flower141.routes import router as batch_router

# Flower fails a run whose task is silent for 60 s.
_TASK_HEARTBEAT = 15.0
_NODE_HEARTBEAT = 30.0
# Seconds between looks for orders whose node went offline.
_THOROUGH = 0.5


class Link:
    """Flower's link state, held in memory: nodes, one run, messages under way. Nothing of it outlives the process."""

    def __init__(self) -> None:
        _, self.factory = get_objectstore_linkstate_factories(
            FLWR_IN_MEMORY_DB_NAME, get_federation_manager(is_simulation=False)
        )
        self.state = self.factory.state()
        self.doorbell = Doorbell()

    def app(self, *, keys_required: bool) -> FastAPI:
        """Return the ASGI application of the public port: ``/v1/fleet/*`` and ``/health``, nothing else."""
        app = FastAPI(
            title="Perennial",
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            middleware=[
                Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
                Middleware(ProtobufTranslationMiddleware),
                Middleware(NodeAuthMiddleware),
            ],
        )
        app.state.linkstate_factory = self.factory
        app.state.enable_supernode_auth = keys_required
        app.state.doorbell = self.doorbell
        app.include_router(health.router)
        app.include_router(batch_router)
        app.include_router(fleet_router, dependencies=[Depends(_only_own_replies)])
        return app

    def register(self, key: EllipticCurvePublicKey) -> int:
        """Admit the node with this key; return its id. A revoked key stays refused until the process restarts."""
        try:
            return self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key_to_bytes(key), _NODE_HEARTBEAT)
        except ValueError as error:
            raise ValueError("the key was revoked; restart the server, or give the device a new key") from error

    def revoke(self, node_id: int) -> None:
        self.state.delete_node(NOOP_FLWR_AID, node_id)

    def start_run(self, config: Mapping[str, str | int | float | bool]) -> LinkRun:
        """Create a run that nodes see as running, and keep it so until ``LinkRun.finish``."""
        run_id = self.state.create_run(
            None, None, None, dict(config), NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        run = self.state.get_run_info(run_ids=[run_id])[0]
        task = run.primary_task_id
        if task is None or self.state.claim_task(task) is None or not self.state.activate_task(task):
            raise RuntimeError(f"Flower did not start run {run_id}")
        # Flower's Message constructor reads the sender from here.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run_id, SUPERLINK_NODE_ID
        return LinkRun(self, run, task)


class LinkRun:
    """A run under way and its heartbeat."""

    def __init__(self, link: Link, run: Run, task: int) -> None:
        self.link, self.task = link, task
        self.grid = LinkGrid(link, run)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-heartbeat", daemon=True)
        self._thread.start()

    def finish(self, *, completed: bool) -> None:
        """Tell nodes that the run is over; their late replies are refused from now on."""
        self._stop.set()
        self._thread.join()
        self.link.state.finish_task(self.task, SubStatus.COMPLETED if completed else SubStatus.STOPPED, "")

    def _beat(self) -> None:
        while not self._stop.wait(_TASK_HEARTBEAT):
            self.link.state.acknowledge_task_heartbeat(self.task)


@dataclass(frozen=True)
class _Arriving:
    """A reply that a node has announced and whose parts are still on their way."""

    order_id: str
    tree: ObjectTree


class LinkGrid(Grid):
    """Flower's Grid, reading and writing the link state directly."""

    def __init__(self, link: Link, run: Run) -> None:
        self._state, self._store, self._run = link.state, link.state.object_store, run
        self._doorbell = link.doorbell
        self._looked = 0.0
        self._arriving: dict[str, _Arriving] = {}
        assert isinstance(link.state, InMemoryLinkState)
        self._replied = link.state.message_ins_id_to_message_res_id

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
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
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            objects, tree = get_all_nested_objects(message), get_object_tree(message)
            session = self._state.start_session(self._run.run_id)
            stored, missing = self._state.store_message_and_object_tree(
                remove_content_from_message(message), tree, session
            )
            if not stored:
                return ""
            for object_id in missing:
                self._state.store_object(self._run.run_id, session, object_id, objects[object_id].deflate())
        self._doorbell.ring(message.metadata.dst_node_id)
        return message.metadata.message_id

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are complete; never wait for one that is still being sent."""
        # Flower's own look also finds nodes that went offline, and takes its time.
        if thorough := time.monotonic() - self._looked > _THOROUGH:
            self._looked = time.monotonic()
        for order_id in message_ids:
            for reply in self._announced(order_id, thorough):
                reply_id = reply.metadata.message_id
                try:
                    self._arriving[reply_id] = _Arriving(order_id, self._store.get_object_tree(reply_id))
                except NoObjectInStoreError:
                    continue
        complete = [reply_id for reply_id, reply in self._arriving.items() if self._is_complete(reply.tree)]
        return [self._take(reply_id) for reply_id in complete]

    def _announced(self, order_id: str, thorough: bool) -> list[Message]:
        if any(reply.order_id == order_id for reply in self._arriving.values()):
            return []
        if not thorough and order_id not in self._replied:
            return []
        try:
            return self._state.get_message_res({order_id}, self._run.run_id)
        except KeyError:
            # flwr 1.41 looks up an order that it has dropped a moment before for its age.
            return []

    def _is_complete(self, tree: ObjectTree) -> bool:
        return all(self._store.get(part.object_id) for part in iterate_object_tree(tree))

    def _take(self, reply_id: str) -> Message:
        arrived = self._arriving.pop(reply_id)
        contents = {
            part.object_id: self._store.get(part.object_id) or b"" for part in iterate_object_tree(arrived.tree)
        }
        message = inflate_object_from_contents(reply_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = reply_id
        self._store.delete(reply_id)
        self.forget([arrived.order_id])
        return message

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop orders and what belongs to them: Flower keeps the models of an order that no node fetched for ever."""
        orders = set(message_ids)
        self._state.delete_messages(orders)
        late = [reply_id for reply_id, reply in self._arriving.items() if reply.order_id in orders]
        for object_id in [*orders, *late]:
            self._store.delete(object_id)
        for reply_id in late:
            del self._arriving[reply_id]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError("server.grid.EagerGrid sends and receives")


def _only_own_replies(request: Request) -> None:
    """Refuse a reply in another node's name: Flower 1.41 checks who asks, but not whom the reply claims to be from."""
    body = getattr(request.state, "protobuf_request", None)
    if isinstance(body, PushMessagesRequest) and any(
        message.metadata.src_node_id != body.node.node_id for message in body.messages_list
    ):
        raise HTTPException(status_code=403, detail="A reply must carry its sender's node id")
