"""The routes of the link as a plain ASGI application: nothing is read of a request before it is known who sends it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from perennial.common.wire import link
from perennial.common.wire.link import Proof, TokenError
from perennial.common.wire.offer import OFFERED
from perennial.server.link.asgi import ENDLESS, Answer, Peer, Receive, Request, Scope, Send, read_body
from perennial.server.link.fleet import Fleet
from perennial.server.link.fleet_keys import Refusal, Session
from perennial.server.link.fleet_state import Errand, OnlineNode
from perennial.server.link.hall import Hall

LOG = logging.getLogger("perennial")
# Bytes of replies that are here and not yet taken; beyond that devices wait.
HALL = 12 * 2**20
# Replies that are on their way or wait to be let in.
_MOST_UNDER_WAY = 2000
_SECONDS_BETWEEN_TICKS, _SECONDS_BETWEEN_NOTES = 0.25, 60.0
# Of a reply: this long without a byte, or slower than that in all, is too slow.
_SILENT, _BYTES_A_SECOND = 20.0, 2**13

Route = Callable[[Request, Session, OnlineNode], Awaitable[Answer]]


class Waiting:
    """A request that waits for an order: ``ring`` wakes it, and a later one of the same node takes its place."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ring(self) -> None:
        if not self._bell.done():
            self._bell.set_result(None)

    async def rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._bell, seconds)


class Offer(Protocol):
    """What is published for devices, as common/wire/offer.py says."""

    def newest(self, known: str) -> bytes | None: ...
    def file(self, version: int, name: str) -> bytes | None: ...


class FleetApp:
    """Serves ``fleet``. other: answers the paths that are not the link's, if there is one. offer: of predictors."""

    def __init__(
        self,
        fleet: Fleet,
        other: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None,
        offer: Offer | None = None,
    ) -> None:
        self._fleet, self._other, self._offer = fleet, other, offer
        self._waiting: dict[int, Waiting] = {}
        self._arriving: set[str] = set()
        self.hall = Hall(HALL)
        self._refused: Counter[int] = Counter()
        self._posts: dict[str, Route] = {link.WAIT: self._wait, link.BEAT: self._beat, link.LEAVE: self._leave}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        request = Request.of(scope, receive)
        if self._other and request.path.startswith("/v1/fleet/"):
            return await self._other(scope, receive, send)
        try:
            answer = await self._answer(request)
        except Refusal as refusal:
            self._refused[refusal.status] += 1
            answer = Answer.refusing(refusal)
        except TokenError as error:
            self._refused[401] += 1
            answer = Answer.refusing(Refusal(401, str(error)))
        # What was announced and not read is in the way of the next request; and a stranger has had its answer.
        answer.close |= request.length > request.read or (answer.status >= 400 and not request.peer.known)
        try:
            await answer.send(send)
        except TimeoutError:
            request.peer.abort()

    # --- Who is it? ---------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request) -> Answer:
        asked = request.method, request.path
        if asked == ("GET", "/health"):
            return Answer(200, b"ok")
        if asked == ("GET", link.GREET):
            return self._greet(request)
        is_reply, is_offered = request.path.startswith(link.REPLY), request.path.startswith(OFFERED)
        known = is_reply or is_offered or request.path == link.SESSION or request.path in self._posts
        if request.method != "POST" or not known:
            raise Refusal(404, "no such route")
        if request.length == ENDLESS:
            raise Refusal(411, "say how long the body is")
        if request.length and not is_reply:
            raise Refusal(413, "this request has no body")
        if request.path == link.SESSION:
            return self._begin(request)
        session, node = self._known(request)
        with self._served(request.peer, node):
            if is_reply:
                return await self._reply(request, session, node)
            if is_offered:
                return await self._give(request.path.removeprefix(OFFERED))
            return await self._posts[request.path](request, session, node)

    def _greet(self, request: Request) -> Answer:
        theirs = request.headers.get(link.VERSION_HEADER.encode(), str(link.VERSION).encode())
        if theirs != str(link.VERSION).encode():
            raise Refusal(426, f"this server speaks link {link.VERSION}; install a Perennial on the device that does")
        with self._fleet.lock:
            challenge = self._fleet.keys.challenges.make(self._fleet.clock())
        return Answer.json({"link": link.VERSION, "challenge": challenge})

    def _begin(self, request: Request) -> Answer:
        """Begin a session, of which the first request may come at once; may be repeated."""
        proof = Proof.read(request.authorization)
        with self._fleet.lock:
            now = self._fleet.clock()
            session = self._fleet.keys.open(proof, now)
            self._fleet.state.come(session.node, now)
        self._greeted(request.peer, session.node)
        if before := self._waiting.get(session.node):
            before.ring()
        run = self._fleet.run
        said = {"session": session.id, "secret": session.secret.hex(), "node": session.node}
        seconds = session.expires - now
        return Answer.json({**said, "run": run.id, "config": dict(run.config), "seconds": seconds})

    def _known(self, request: Request) -> tuple[Session, OnlineNode]:
        """Return who sends a request, or refuse it."""
        with self._fleet.lock:
            now = self._fleet.clock()
            session, token = self._fleet.keys.check(
                request.authorization, request.method, request.path, request.length, now
            )
            node = self._fleet.state.online.get(session.node)
            if node is None:
                raise Refusal(401, "no such session (any more); begin a new one")
            self._fleet.state.heard(node, now)
        request.digest = token.body
        self._greeted(request.peer, node.id)
        return session, node

    def _greeted(self, peer: Peer, node: int) -> None:
        if not peer.known:
            peer.meet(lambda: self._hung_up(peer, node))

    def _hung_up(self, peer: Peer, node: int) -> None:
        with self._fleet.lock:
            self._fleet.state.hung_up(node, self._fleet.clock())
        if (waiting := self._waiting.get(node)) and waiting.peer is peer:
            waiting.ring()

    @contextlib.contextmanager
    def _served(self, peer: Peer, node: OnlineNode) -> Iterator[None]:
        """A node is not silent while a request of it is served."""
        node.busy += 1
        try:
            yield
        finally:
            node.busy -= 1
            with self._fleet.lock:
                now = self._fleet.clock()
                if peer.closed:
                    self._fleet.state.hung_up(node.id, now)
                else:
                    self._fleet.state.heard(node, now)

    # --- Orders and replies -------------------------------------------------------------------------------------------

    async def _wait(self, request: Request, session: Session, node: OnlineNode) -> Answer:
        """Answer with the next order, as soon as there is one."""
        if before := self._waiting.get(node.id):
            before.ring()
        waiting = self._waiting[node.id] = Waiting(request.peer)
        try:
            order = self._next(waiting, session, node)
            if order is None:
                await waiting.rest(link.PATIENCE * random.uniform(0.8, 1.0))
                order = self._next(waiting, session, node)
        finally:
            if self._waiting.get(node.id) is waiting:
                del self._waiting[node.id]
        if order is None:
            return Answer(204)
        return Answer(200, pieces=order.pieces)

    def _next(self, waiting: Waiting, session: Session, node: OnlineNode) -> Errand | None:
        """Return the order for a request that waits, unless something has become of it meanwhile."""
        with self._fleet.lock:
            if self._fleet.over:
                # A server whose disk was full may be back at once.
                raise Refusal(503, "the run is over", retry=random.uniform(1, 3))
            if self._waiting.get(node.id) is not waiting:
                raise Refusal(409, "this node waits with a later request")
            if not self._fleet.keys.lives(session):
                raise Refusal(401, "no such session (any more); begin a new one")
            return None if waiting.peer.closed else self._fleet.state.hand_out(node)

    async def _reply(self, request: Request, session: Session, node: OnlineNode) -> Answer:
        order_id = request.path.removeprefix(link.REPLY)
        with self._fleet.lock:
            order = self._fleet.state.expect(node, order_id, request.length)
            # A refusal may have lost the order, for which somebody waits.
            self._fleet.notify()
        if order is None:
            return Answer(204)
        if order_id in self._arriving:
            raise Refusal(409, "a reply to this order is on its way")
        if len(self._arriving) >= _MOST_UNDER_WAY:
            raise Refusal(503, "too many replies are on their way", retry=random.uniform(1, 10))
        self._arriving.add(order_id)
        try:
            return await self._take_in(request, node, order)
        finally:
            self._arriving.discard(order_id)

    async def _take_in(self, request: Request, node: OnlineNode, order: Errand) -> Answer:
        await self.hall.enter(request.length, lambda: request.peer.closed)
        kept = False
        try:
            body = await read_body(request, _SILENT, _SILENT + request.length / _BYTES_A_SECOND)
            with self._fleet.lock:
                kept = self._fleet.state.answer(node, order, body)
                self._fleet.notify()
        finally:
            if not kept:
                self.hall.leave(request.length)
        if not kept:
            raise Refusal(410, "the reply is too late")
        return Answer(204)

    async def _beat(self, request: Request, session: Session, node: OnlineNode) -> Answer:
        return Answer(204)

    async def _give(self, asked: str) -> Answer:
        """Give of the predictors what a node has not."""
        if self._offer is None:
            return Answer(204)
        version, is_file, name = asked.partition("/")
        if not is_file:
            # Much is read when there is a new version.
            manifest = await asyncio.to_thread(self._offer.newest, version)
            return Answer(204) if manifest is None else Answer(200, manifest)
        number = int(version) if version.isascii() and version.isdigit() and len(version) < 16 else 0
        content = self._offer.file(number, name)
        return Answer(204) if content is None else Answer(200, pieces=[content])

    async def _leave(self, request: Request, session: Session, node: OnlineNode) -> Answer:
        with self._fleet.lock:
            self._fleet.keys.end(node.id)
            self._fleet.state.leave(node.id)
            self._fleet.notify()
        return Answer(204, close=True)

    # --- By itself ----------------------------------------------------------------------------------------------------

    def wake(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            if waiting := self._waiting.get(node):
                waiting.ring()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._fleet.serve(asyncio.get_running_loop(), self.wake, self.hall.leave)
        ticking = asyncio.create_task(self._tick())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        ticking.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _tick(self) -> None:
        noted = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_TICKS)
            self.wake(self._fleet.tick())
            if self._refused and asyncio.get_running_loop().time() - noted > _SECONDS_BETWEEN_NOTES:
                said = ", ".join(f"{status}: {count}" for status, count in sorted(self._refused.items()))
                LOG.warning("requests refused by HTTP status since the last such line: %s", said)
                self._refused.clear()
                noted = asyncio.get_running_loop().time()
