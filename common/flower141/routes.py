"""The two routes that move all parts of a message in one request (``batch``), beside Flower's fleet router."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request, Response
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import NoObjectInStoreError
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.routers.fleet.node_auth import authenticate_node
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.concurrency import run_in_threadpool

from common.flower141 import batch

router = APIRouter()


@router.post(batch.PULL)
async def pull_parts(request: Request) -> Response:
    """Return the parts of the message that the request names, as many as fit; the node fetches the rest one by one."""
    return Response(await run_in_threadpool(_pull, request, await request.body()), media_type=batch.MEDIA_TYPE)


@router.post(batch.PUSH)
async def push_parts(request: Request) -> Response:
    """Store the parts; the first 'part' of the body is the request that says who sends them, and in which session."""
    await run_in_threadpool(_push, request, await request.body())
    return Response(media_type=batch.MEDIA_TYPE)


def _pull(request: Request, body: bytes) -> bytes:
    head = PullObjectRequest.FromString(body)
    request.state.protobuf_request = head
    authenticate_node(request)
    state = get_linkstate(request)
    try:
        tree = state.object_store.get_object_tree(head.object_id)
    except NoObjectInStoreError:
        return b""
    parts: list[tuple[str, bytes]] = []
    size = 0
    for part in iterate_object_tree(tree):
        one = PullObjectRequest(node=head.node, run_id=head.run_id, object_id=part.object_id)
        reply = fleet_handlers.pull_object(one, state)
        size += len(reply.object_content)
        if not reply.object_available or (parts and size > batch.MOST_BYTES):
            break
        parts.append((part.object_id, reply.object_content))
    return batch.pack(parts)


def _push(request: Request, body: bytes) -> None:
    try:
        (_, first), *parts = batch.unpack(body)
    except ValueError as error:
        raise HTTPException(400, "not a row of parts") from error
    head = PushObjectRequest.FromString(first)
    request.state.protobuf_request = head
    authenticate_node(request)
    state = get_linkstate(request)
    for object_id, content in parts:
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
