"""The way to stock SuperNodes: Flower's fleet API, its state and a grid in one interpreter.

Stock Flower runs the ServerApp in a process of its own, behind HTTP and polls of three seconds. Here the application
that stock nodes talk to is built from Flower's own fleet router alone (control and runtime APIs do not exist in it),
and the grid reads and writes the link state that the router serves from. Devices of ours speak the link instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from fastapi import Depends, FastAPI, HTTPException, Request
from flwr.cli.config_utils import get_fab_metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, SubStatus
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.error import http_error_translator
from flwr.supercore.fab import Fab
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.supercore.routers import health
from flwr.supercore.run import Run as FlowerRun
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from perennial.server.link.link_grid import LinkGrid
from perennial.server.link.link_state import LinkState
from perennial.server.link.stock_gate import StockGate

_NODE_HEARTBEAT = 30.0
# Of a reply without its content, or of an error with its text.
_MOST_ANNOUNCED = 2**20


class Link:
    """Flower's link state, held in memory: nodes, one run, messages under way. Nothing of it outlives the process."""

    def __init__(self) -> None:
        federations = get_federation_manager(is_simulation=False)
        self.state = LinkState(federations, InMemoryObjectStore())
        _, self.factory = get_objectstore_linkstate_factories(FLWR_IN_MEMORY_DB_NAME, federations)
        self.factory.state_instance = self.state

    def gated(self, *, keys_required: bool) -> StockGate:
        """Return what may be reached from outside: ``app`` behind a gate that knows who sends."""

        def admits(key: bytes) -> bool:
            return not keys_required or self.state.get_node_id_by_public_key(key) is not None

        return StockGate(self.app(keys_required=keys_required), admits)

    def app(self, *, keys_required: bool) -> FastAPI:
        """Return the ASGI application of Flower's fleet API: ``/v1/fleet/*`` and ``/health``, nothing else."""
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
        app.include_router(health.router)
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

    def start_run(self, config: Mapping[str, str | int | float | bool], bundle: bytes = b"") -> LinkRun:
        """Create a run that nodes see as running, and keep it so until ``LinkRun.finish``. bundle: its app."""
        stored = self.state.store_fab(Fab(sha256(bundle).hexdigest(), bundle, {})) if bundle else None
        app, version = get_fab_metadata(bundle) if bundle else (None, None)
        run_id = self.state.create_run(
            app, version, stored, dict(config), NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        run = self.state.get_run_info(run_ids=[run_id])[0]
        task = run.primary_task_id
        if task is None or self.state.claim_task(task) is None or not self.state.activate_task(task):
            raise RuntimeError(f"Flower did not start run {run_id}")
        self._keep(task)
        # Flower's Message constructor reads the sender from here.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run_id, SUPERLINK_NODE_ID
        return LinkRun(self, run, task)

    def _keep(self, task: int) -> None:
        """Let the task live until it is finished, or the process ends.

        Flower fails a run whose task was silent for 60 s by the wall clock, for good. The task is this process: it is
        silent only where all of it was stopped or the clock was set, and then the run must go on.
        """
        self.state.task_token_store[task].active_until = datetime.max.replace(tzinfo=UTC)


class LinkRun:
    """A run under way."""

    def __init__(self, link: Link, run: FlowerRun, task: int) -> None:
        self.link, self.task = link, task
        self.grid = LinkGrid(link.state, run)

    def finish(self, *, completed: bool) -> None:
        """Tell nodes that the run is over; their late replies are refused from now on."""
        self.link.state.finish_task(self.task, SubStatus.COMPLETED if completed else SubStatus.STOPPED, "")


def _only_own_replies(request: Request) -> None:
    """Refuse what is not one reply with its parts, in the sender's name: Flower 1.41 checks who asks, but not that."""
    body = getattr(request.state, "protobuf_request", None)
    if not isinstance(body, PushMessagesRequest):
        return
    if len(body.messages_list) != 1 or len(body.message_object_trees) != 1:
        raise HTTPException(status_code=400, detail="One reply and its parts at a time")
    if body.messages_list[0].ByteSize() > _MOST_ANNOUNCED:
        raise HTTPException(status_code=413, detail="The content of a reply is sent in parts")
    said = body.messages_list[0].metadata
    if said.src_node_id != body.node.node_id or not said.reply_to_message_id:
        raise HTTPException(status_code=403, detail="A reply must carry its sender's node id")
