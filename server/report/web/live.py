"""The process that serves the live page: the page, its news as server-sent events, and what Prometheus reads.

It has the lowest priority, reads the runs' folders and writes nothing. It looks at them only while somebody looks at
the page, and rests ten times as long as a look took. It ends when its standard input does: the run's process is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from perennial.server.report import markup
from perennial.server.report.block_names import clock_of
from perennial.server.report.columns import RunResult
from perennial.server.report.web import exposition
from perennial.server.report.web.contents import contents, waiting
from perennial.server.report.web.following import FollowedRun, stamp_of
from perennial.server.report.web.overview import place
from perennial.server.report.web.script import HEAD, SCRIPT

_LEAST_REST, _REST_FACTOR, _CLOCK_SECONDS = 1.0, 10.0, 20.0
_MOST_VIEWERS, _MOST_CONNECTIONS = 32, 96
_SIGN_OF_LIFE, _LAST_SECONDS = 15.0, 3.0
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff", "x-frame-options": "DENY",
            "referrer-policy": "no-referrer"}  # fmt: skip


@dataclass(frozen=True)
class PageTask:
    """What to serve. passed: for each folder, the run that is in it and will make room for the one to show.

    hosts: names by which the page may be asked for; empty: all. Pages of others must not read it by a name of theirs.
    """

    title: str
    folders: Sequence[str]
    passed: Sequence[str | None]
    socket: int
    hosts: Sequence[str]


@dataclass
class PageView:
    """What is shown now. version: how often it has changed. over: why nothing will be new any more."""

    parts: dict[str, str]
    place: str = ""
    version: int = 0
    over: str = ""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class LivePage:
    """Looks at the runs, and tells viewers what has changed."""

    def __init__(self, task: PageTask) -> None:
        self._task = task
        self._folders = [Path(folder) for folder in task.folders]
        self._followed = [
            FollowedRun(folder, passed=passed) for folder, passed in zip(self._folders, task.passed, strict=True)
        ]
        self._runs: list[RunResult] = []
        self._stamp: object = None
        self._cost, self._looked = 0.0, -float("inf")
        self._lock = asyncio.Lock()
        self._viewers = 0
        self.view = PageView(waiting(task.title))

    def app(self) -> Starlette:
        routes = [Route("/", self._page), Route("/events", self._events), Route("/metrics", self._metrics)]
        return Starlette(routes=routes)

    # --- Looking ------------------------------------------------------------------------------------------------------

    async def watch(self, ended: asyncio.Event) -> None:
        """Look while there are viewers, until the run has ended; then tell them, and return when they know."""
        while not ended.is_set():
            if self._viewers:
                await self.look()
            try:
                async with asyncio.timeout(self._rest()):
                    await ended.wait()
            except TimeoutError:
                continue
        await self.look(last=True)
        deadline = time.monotonic() + _LAST_SECONDS
        while self._viewers and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def look(self, *, last: bool = False) -> None:
        """Read what is new, unless that was done a moment ago."""
        async with self._lock:
            if not last and time.monotonic() - self._looked < self._rest():
                return
            start = time.monotonic()
            stamp = (stamp_of(self._folders), self._moment())
            if stamp != self._stamp or last:
                now = None if last else datetime.now(UTC)
                self._runs, parts = await asyncio.to_thread(self._read, now)
                self._stamp = stamp
                await self._tell(parts, last)
            self._looked = time.monotonic()
            self._cost = self._looked - start

    def _read(self, now: datetime | None) -> tuple[list[RunResult], dict[str, str]]:
        runs = [run for one in self._followed if (run := one.read())]
        return runs, contents(runs, now) if runs else waiting(self._task.title)

    async def _tell(self, parts: dict[str, str], last: bool) -> None:
        view = self.view
        async with view.changed:
            view.parts, view.place = parts, place(self._runs) if self._runs else ""
            if last:
                done = len(self._runs) == len(self._folders) and all(run.manifest for run in self._runs)
                view.over = "The run has ended" if done else "The run has stopped; this is its last state"
            view.version += 1
            view.changed.notify_all()

    def _moment(self) -> int:
        """Return what changes while a clock goes on and nothing else does."""
        by_clock = any(clock_of(run.config) and not run.config.get("clock-start") for run in self._runs)
        return int(time.time() / _CLOCK_SECONDS) if by_clock else 0

    def _rest(self) -> float:
        return max(_LEAST_REST, _REST_FACTOR * self._cost)

    # --- Answering ----------------------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        await self.look()
        page = markup.document(self._task.title, self.view.parts, HEAD, SCRIPT)
        return HTMLResponse(page, headers=_HEADERS)

    async def _metrics(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        await self.look()
        return Response(exposition.exposition(self._runs), media_type=exposition.MEDIA_TYPE)

    async def _events(self, request: Request) -> Response:
        if refused := self._refused(request):
            return refused
        if self._viewers >= _MOST_VIEWERS:
            return PlainTextResponse(f"{_MOST_VIEWERS} look already", 503, {"retry-after": "10"})
        return StreamingResponse(self._news(), media_type="text/event-stream", headers=_HEADERS)

    async def _news(self) -> AsyncIterator[str]:
        """Yield what has changed since the last time; a viewer that is slow misses what lies between."""
        view, seen, sent = self.view, -1, dict[str, str]()
        self._viewers += 1
        try:
            await self.look()
            while True:
                if view.version == seen and not view.over:
                    try:
                        async with asyncio.timeout(_SIGN_OF_LIFE), view.changed:
                            await view.changed.wait_for(lambda: view.version != seen)  # noqa: B023
                    except TimeoutError:
                        yield ": still here\n\n"
                        continue
                seen, parts = view.version, view.parts
                news = {name: content for name, content in parts.items() if sent.get(name) != content}
                sent = parts
                yield _event("parts", {"parts": news, "place": view.place})
                if view.over:
                    yield _event("over", view.over)
                    return
        finally:
            self._viewers -= 1

    def _refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").rpartition(":")
        name = host[0] if host[1] and host[2].isdigit() else "".join(host)
        if not self._task.hosts or name in self._task.hosts:
            return None
        return PlainTextResponse(f"this page is not called {name[:100]!r} here", 421)


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def _serve(task: PageTask) -> None:
    live, ended = LivePage(task), asyncio.Event()
    listening = socket.socket(fileno=task.socket)
    config = uvicorn.Config(
        live.app(),
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.set() if not os.read(sys.stdin.fileno(), 1024) else None)
    watching = asyncio.create_task(live.watch(ended))
    await asyncio.wait([serving, watching], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    loop.remove_reader(sys.stdin.fileno())


def main() -> None:
    asyncio.run(_serve(PageTask(**json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
