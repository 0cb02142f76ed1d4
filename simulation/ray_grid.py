"""A Flower Grid on Ray: supervised actors that run the unchanged ClientApp on unchanged messages.

Flower's own simulation runtime polls twice at 0.1 s a round and keeps dead actors in its pool. Here a message goes
straight to the actor of its node; one that dies answers with an error, and a fresh one takes its place.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Collection, Iterable
from typing import Any

import ray
from flwr.app import Context, Message, RecordDict, UserConfig

from perennial.common.command.errors import RunError
from perennial.server.link.local_grid import (
    FIRST_NODE_ID,
    RUN_ID,
    LocalGrid,
    app_raised,
    named,
    node_died,
    take_identity,
)

LOG = logging.getLogger("perennial")
# Silence of this many seconds makes the grid look whether Ray itself is there.
_LOOK_SECONDS = 5.0
# Workers import torch before they can answer, which on a busy machine takes more than the wait for an identity.
_START_SECONDS = 300.0


class Worker:
    """A Ray actor that stands for one or more SuperNodes; imports their app once and keeps what it loaded."""

    def __init__(self, here: str, app: str) -> None:
        """``here``: the user's working folder. ``app``: the name of their own ClientApp; '': the project's."""
        if app:
            from perennial.client.own_app import own_app

            sys.path.insert(0, here)
            self._app = own_app(app)
        else:
            import perennial.client.app

            sys.path.append(here)
            self._app = perennial.client.app.app
        if "torch" in sys.modules:
            # One worker a CPU: more threads would only fight for it.
            sys.modules["torch"].set_num_threads(1)

    def begin(self, run_config: UserConfig) -> None:
        """Start a run: nodes of an earlier one are forgotten."""
        self._run_config = run_config
        self._contexts: dict[int, Context] = {}

    def handle(self, message: Message, node_config: UserConfig) -> Message:
        """Run the ClientApp for the message's node; what it raises becomes an error reply, as Flower does it."""
        node_id = message.metadata.dst_node_id
        context = self._contexts.setdefault(
            node_id, Context(RUN_ID, node_id, node_config, RecordDict(), self._run_config)
        )
        try:
            return self._app(message, context)
        except Exception as error:  # whatever a client does wrong is its own round's loss, not the worker's end
            return app_raised(message, error)


class RayGrid(LocalGrid):
    """SuperNodes on at most ``workers`` actors, on this machine or on the cluster that Ray is connected to.

    app: the name of the ClientApp that they run; '': the project's own.
    """

    def __init__(self, workers: int, app: str = "") -> None:
        self._actor_class: Any = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Worker)
        self._most_workers, self._app = workers, app
        self._workers: list[Any] = []
        self._run_config: UserConfig = {}
        self._configs: dict[int, UserConfig] = {}
        # Replies under way, by Ray reference: the message, and the actor that has it.
        self._pending: dict[Any, tuple[Message, Any]] = {}

    def begin(self, nodes: int, run_config: UserConfig) -> None:
        """Start a run on ``nodes`` SuperNodes, on the workers of the last one: new ones take seconds to import.

        Returns when the new ones can answer, or after ``_START_SECONDS``; who is there then is the roster's business.
        """
        take_identity()
        self._run_config, self._pending = run_config, {}
        self._configs = {
            FIRST_NODE_ID + place: {"partition-id": place, "num-partitions": nodes} for place in range(nodes)
        }
        for worker in self._workers:
            worker.begin.remote(run_config)
        starting = []
        while len(self._workers) < min(self._most_workers, nodes):
            worker, begun = self._spawn()
            self._workers.append(worker)
            starting.append(begun)
        _wait_for(starting)

    def _spawn(self) -> tuple[Any, Any]:
        """Return a new worker, and the reference that is ready when it has begun the run."""
        worker = self._actor_class.remote(os.getcwd(), self._app)
        return worker, worker.begin.remote(self._run_config)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._configs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(named(message))
            node_id = message.metadata.dst_node_id
            worker = self._workers[node_id % len(self._workers)]
            self._pending[worker.handle.remote(message, self._configs[node_id])] = message, worker
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        return self._collect(self._references(wanted), 0.0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        ids = set(self.push_messages(messages))
        waiting = self._references(ids)
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (left := deadline - time.monotonic()) > 0:
            arrived = self._collect(waiting, min(left, _LOOK_SECONDS))
            if not arrived:
                _check_ray()
            replies += arrived
            waiting = [reference for reference in waiting if reference in self._pending]
        for reference in waiting:
            # What answers after the deadline answers nobody.
            del self._pending[reference]
        return replies

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers, self._pending = [], {}

    def _references(self, message_ids: Collection[str]) -> list[Any]:
        return [ref for ref, (sent, _) in self._pending.items() if sent.metadata.message_id in message_ids]

    def _collect(self, references: list[Any], timeout: float) -> list[Message]:
        """Return what is ready after at most ``timeout`` seconds; waits for one reply, takes all that are there."""
        if not references:
            return []
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout)
        if ready and len(references) > 1:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return [self._take(reference) for reference in ready]

    def _take(self, reference: Any) -> Message:
        sent, worker = self._pending.pop(reference)
        try:
            reply: Message = ray.get(reference)
        except ray.exceptions.RayError as error:
            if worker in self._workers:
                LOG.warning("a worker died (%s); a new one takes its place", type(error).__name__)
                ray.kill(worker)
                self._workers[self._workers.index(worker)], _ = self._spawn()
            return node_died(sent, f"worker died: {type(error).__name__}")
        return reply


def _wait_for(references: list[Any]) -> None:
    """Return when all are ready or failed, or after ``_START_SECONDS``."""
    deadline = time.monotonic() + _START_SECONDS
    while references and (left := deadline - time.monotonic()) > 0:
        ready, references = ray.wait(references, num_returns=len(references), timeout=min(left, _LOOK_SECONDS))
        if not ready:
            _check_ray()


def _check_ray() -> None:
    """Raise where no machine of Ray's is alive: new workers would wait for one for ever."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    if not any(node["Alive"] for node in nodes):
        raise RunError("Ray has died under the run; --resume goes on from the last checkpoint")
