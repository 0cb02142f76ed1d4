"""A Flower Grid on Ray: workers that run the unchanged ClientApp on unchanged messages.

Flower's own simulation runtime polls twice at 0.1 s a round and keeps dead actors in its pool. Here a message goes
straight to the worker of its node. If that worker dies, another one has the message: what a node answers depends on the
message and on its data alone.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import ray
from flwr.app import Message, UserConfig

from perennial.server.link.local_grid import FIRST_NODE_ID, LocalGrid, named, node_died, take_identity
from perennial.simulation.workers import Workers

# Silence of this many seconds makes the grid look whether Ray itself is there, and whether a machine has joined.
_LOOK_SECONDS = 2.0
# Workers import torch before they can answer, which on a busy machine takes more than the wait for an identity.
_START_SECONDS = 300.0
# Workers that a message may be under when they die; one that kills its worker must not kill them all.
_MOST_TRIES = 3
# One Ray, and its workers, may serve several grids of a process.
_RUNS = count(1)


@dataclass(eq=False)
class _Parcel:
    """A message under way. worker: that has it, on ``machine``. avoid: machines on which its worker died."""

    message: Message
    worker: Any = None
    machine: str = ""
    tries: int = 0
    avoid: set[str] = field(default_factory=set)


class RayGrid(LocalGrid):
    """SuperNodes on at most ``most`` workers (None: one for each CPU), on this machine or on Ray's cluster.

    app: the name of the ClientApp that they run; '': the project's own.
    """

    def __init__(self, most: int | None = None, app: str = "") -> None:
        self._most, self._app = most, app
        self._workers = Workers(most, app=app)
        self._run, self._run_config = 0, UserConfig()
        self._configs: dict[int, UserConfig] = {}
        # By the Ray reference of the reply, and those that wait for a worker.
        self._pending: dict[Any, _Parcel] = {}
        self._waiting: list[_Parcel] = []
        self._lived: dict[int, str] = {}

    def begin(self, nodes: int, run_config: UserConfig) -> None:
        """Start a run on ``nodes`` SuperNodes, on the workers of the last one: new ones take seconds to import.

        Returns when the new ones can answer, or after ``_START_SECONDS``; who is there then is the roster's business.
        """
        take_identity()
        self._run, self._run_config = next(_RUNS), run_config
        self._pending, self._waiting, self._lived = {}, [], {}
        self._configs = {
            FIRST_NODE_ID + place: {"partition-id": place, "num-partitions": nodes} for place in range(nodes)
        }
        gpus = float(run_config.get("gpus-per-worker", 0.0))
        if gpus != self._workers.gpus:
            self._workers.close()
            self._workers = Workers(self._most, gpus, app=self._app)
        self._workers.start(nodes, _START_SECONDS)

    def homes(self) -> list[str]:
        """Return the machine that answered last for each node; '' for one that has not answered yet."""
        return [self._lived.get(node, "") for node in self._configs]

    def machines(self) -> set[str]:
        """Return the names of the machines that nodes can live on now."""
        self._look()
        return self._workers.machines()

    def get_node_ids(self) -> Iterable[int]:
        return list(self._configs)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._workers.look()
        ids = []
        for message in messages:
            ids.append(named(message))
            self._send(_Parcel(message))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._look()
        return self._collect(set(message_ids), 0.0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return list(self.stream(messages, timeout=timeout))

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Send now, and return an iterator over the replies as they come."""
        return self._arriving(set(self.push_messages(messages)), timeout)

    def _arriving(self, ids: set[str], timeout: float | None) -> Iterator[Message]:
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        try:
            while ids and (left := deadline - time.monotonic()) > 0:
                arrived = self._collect(ids, min(left, _LOOK_SECONDS))
                if not arrived:
                    self._look()
                ids -= {reply.metadata.reply_to_message_id for reply in arrived}
                while arrived:
                    yield arrived.pop(0)
        finally:
            # What answers after the deadline answers nobody.
            self._forget(ids)

    def _forget(self, ids: Collection[str]) -> None:
        self._pending = {ref: one for ref, one in self._pending.items() if one.message.metadata.message_id not in ids}
        self._waiting = [one for one in self._waiting if one.message.metadata.message_id not in ids]

    def close(self) -> None:
        """Stop the workers."""
        self._workers.close()
        self._pending, self._waiting = {}, []

    def _send(self, parcel: _Parcel) -> None:
        """Give a message to the worker of its node; if there is no worker at all, it waits for one."""
        node_id = parcel.message.metadata.dst_node_id
        parcel.worker = self._workers.ask(node_id - FIRST_NODE_ID, parcel.avoid)
        if parcel.worker is None:
            self._waiting.append(parcel)
            return
        parcel.machine = self._workers.machine(parcel.worker)
        # Ray would try again on this worker alone, wherever and whenever it is started again.
        handle = parcel.worker.handle.options(max_task_retries=0)
        self._pending[handle.remote(self._run, self._run_config, self._configs[node_id], parcel.message)] = parcel

    def _look(self) -> None:
        self._workers.look()
        waiting, self._waiting = self._waiting, []
        for parcel in waiting:
            self._send(parcel)

    def _collect(self, ids: Collection[str], timeout: float) -> list[Message]:
        """Return what is ready after at most ``timeout`` seconds; waits for one reply, takes all that are there."""
        references = [ref for ref, parcel in self._pending.items() if parcel.message.metadata.message_id in ids]
        if not references:
            # All wait for a worker.
            time.sleep(min(timeout, 0.05))
            return []
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout)
        if ready and len(references) > 1:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return [reply for reference in ready if (reply := self._take(reference))]

    def _take(self, reference: Any) -> Message | None:
        """Return a reply; None: its worker died, and another one has the message now."""
        parcel = self._pending.pop(reference)
        try:
            reply: Message = ray.get(reference)
        except ray.exceptions.RayError as error:
            self._workers.lost(parcel.worker)
            parcel.tries += 1
            parcel.avoid.add(parcel.machine)
            if parcel.tries >= _MOST_TRIES:
                return node_died(parcel.message, f"worker died {parcel.tries} times: {type(error).__name__}")
            self._send(parcel)
            return None
        self._lived[parcel.message.metadata.dst_node_id] = self._workers.name(parcel.machine)
        return reply
