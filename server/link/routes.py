"""The routes of ``parts``, beside Flower's fleet router and under the same checks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from fastapi import APIRouter, HTTPException, Request, Response
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.concurrency import run_in_threadpool

from perennial.common.wire import parts

router = APIRouter()
# Seconds that a node waits once the run is over, lest it asks again and again while the server ends.
_MOMENT = 0.1


class Doorbell:
    """Wakes the requests that wait for a message to a node. ``ring`` is called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self.closed = False

    def ring(self, node_id: int) -> None:
        with self._lock:
            if waiting := self._waiting.get(node_id):
                loop, event = waiting
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Let nobody wait any more: the run is over."""
        self.closed = True
        for node_id in list(self._waiting):
            self.ring(node_id)

    def expect(self, node_id: int) -> asyncio.Event:
        """Return an event that the next ring sets; a node waits with one request at a time."""
        event = asyncio.Event()
        with self._lock:
            self._waiting[node_id] = asyncio.get_running_loop(), event
        return event

    def forget(self, node_id: int, event: asyncio.Event) -> None:
        with self._lock:
            if (waiting := self._waiting.get(node_id)) and waiting[1] is event:
                del self._waiting[node_id]


@router.post(parts.WAIT)
async def wait(request: Request) -> Response:
    """Answer like pull-messages, but wait for a message first; a node that hung up in the meantime is given none."""
    head = PullMessagesRequest.FromString(await request.body())
    request.state.protobuf_request = head
    await run_in_threadpool(authenticate_node, request)
    bell: Doorbell = request.app.state.doorbell
    # Expected before the first look, so that a message in between rings too.
    event = bell.expect(head.node.node_id)
    try:
        answer = await run_in_threadpool(_next, request, head)
        if not answer:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), _MOMENT if bell.closed else parts.PATIENCE)
            if event.is_set() and not bell.closed and not await request.is_disconnected():
                answer = await run_in_threadpool(_next, request, head)
    finally:
        bell.forget(head.node.node_id, event)
    return Response(answer, media_type=parts.MEDIA_TYPE)


@router.post(parts.PULL)
async def pull_parts(request: Request) -> Response:
    """Return the parts of the message that the request names, as many as fit; the node fetches the rest one by one."""
    return Response(await run_in_threadpool(_pull, request, await request.body()), media_type=parts.MEDIA_TYPE)


@router.post(parts.PUSH)
async def push_parts(request: Request) -> Response:
    """Store the parts; the first 'part' of the body is the request that says who sends them, and in which session."""
    await run_in_threadpool(_push, request, await request.body())
    return Response(media_type=parts.MEDIA_TYPE)


def _next(request: Request, head: PullMessagesRequest) -> bytes:
    state = get_linkstate(request)
    # The key may have been revoked while the node waited.
    authenticate_node(request)
    answer = fleet_handlers.pull_messages(request=head, state=state, store=state.object_store)
    return answer.SerializeToString() if answer.messages_list else b""


def _pull(request: Request, body: bytes) -> bytes:
    head = PullObjectRequest.FromString(body)
    request.state.protobuf_request = head
    authenticate_node(request)
    state = get_linkstate(request)
    try:
        tree = state.object_store.get_object_tree(head.object_id)
    except NoObjectInStoreError:
        return b""
    pairs: list[tuple[str, bytes]] = []
    size = 0
    for part in iterate_object_tree(tree):
        one = PullObjectRequest(node=head.node, run_id=head.run_id, object_id=part.object_id)
        reply = fleet_handlers.pull_object(one, state)
        size += len(reply.object_content)
        if not reply.object_available or (pairs and size > parts.MOST_BYTES):
            break
        pairs.append((part.object_id, reply.object_content))
    return parts.pack(pairs)


def _pairs(body: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        yield from parts.unpack(body)
    except ValueError as error:
        raise HTTPException(400, "not a row of parts") from error


def _push(request: Request, body: bytes) -> None:
    # One by one, and none but the first before it is known who sends them: a body may hold a million.
    pairs = _pairs(body)
    _, first = next(pairs, ("", b""))
    head = PushObjectRequest.FromString(first)
    request.state.protobuf_request = head
    authenticate_node(request)
    state = get_linkstate(request)
    for object_id, content in pairs:
        fleet_handlers.push_object(
            PushObjectRequest(
                node=head.node,
                run_id=head.run_id,
                session_id=head.session_id,
                object_id=object_id,
                object_content=content,
            ),
            state,
        )
