"""All of a server's requests: who may ask, the quick route, and the others; as one ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import math

from perennial.server.link.asgi import ENDLESS, Answer, App, Receive, Request, Scope, Send
from perennial.server.link.fleet_keys import Refusal
from perennial.server.predict.serving.infer import Infer
from perennial.server.predict.serving.shelf import Shelf

LOG = logging.getLogger("perennial")
# For whoever restarts a server that is not well; it says nothing of the model.
_OPEN = ("/v2/health/live", "/v2/health/ready")
_SCHEME = b"Bearer "
_DRAIN_SECONDS = 3.0


class Front:
    """Serves the routes of ``infer`` and ``others``. token: what ``authorization: Bearer`` must bring, unless None."""

    def __init__(self, infer: Infer, others: App, shelf: Shelf, token: str | None) -> None:
        self._infer, self._others, self._shelf = infer, others, shelf
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        request = Request.of(scope, receive)
        try:
            self._admit(request, scope["path"])
            if not self._infer.asked_by(request.path):
                return await self._others(scope, receive, send)
            answer = await self._infer(request)
        except Refusal as refusal:
            # Most clients read no answer before they have sent all of their body.
            answer = _refusing(refusal, close=refusal.status == 408 or not await _is_drained(request))
        except Exception:
            LOG.exception("a request failed")
            answer = Answer(500, b'{"error": "the server failed; its log says why"}', headers=[_JSON], close=True)
        try:
            await answer.send(send)
        except TimeoutError:
            request.peer.abort()

    def _admit(self, request: Request, path: str) -> None:
        if self._token is None:
            return request.peer.meet()
        if path in _OPEN:
            return None
        said = request.headers.get(b"authorization", b"")
        if not said.startswith(_SCHEME) or not hmac.compare_digest(said.removeprefix(_SCHEME), self._token):
            raise Refusal(401, "this server wants its token: authorization: Bearer TOKEN")
        return request.peer.meet()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        watching = asyncio.create_task(self._shelf.watch())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        self._infer.close()
        await send({"type": "lifespan.shutdown.complete"})


_JSON = (b"content-type", b"application/json")


async def _is_drained(request: Request) -> bool:
    """Read what is left of a body that nobody wants, for a moment; return whether that was all."""
    if request.length == ENDLESS:
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while request.read < request.length:
                message = await request.receive()
                if message["type"] != "http.request":
                    return False
                request.read += len(message.get("body", b""))
    return request.read >= request.length


def _refusing(refusal: Refusal, *, close: bool) -> Answer:
    headers = [_JSON]
    if refusal.retry:
        headers.append((b"retry-after", str(math.ceil(refusal.retry)).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.status == 405:
        headers.append((b"allow", b"POST"))
    return Answer(refusal.status, json.dumps({"error": str(refusal)}).encode(), headers=headers, close=close)
