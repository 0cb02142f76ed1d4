"""The workers of a simulation, on all machines that Ray has: who can be asked, and on which machine each one is.

Ray places workers and starts them again, where there is room. What it has not (yet) started is not asked: if a machine
dies, its nodes move to the workers that are left; if a machine joins, workers start there and nodes move to them.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import ray
from flwr.app import Context, Message, RecordDict, UserConfig

from perennial.common.command.errors import RunError
from perennial.server.link.local_grid import RUN_ID, app_raised

LOG = logging.getLogger("perennial")
# Seconds between two looks at which machines there are.
_LOOK_SECONDS = 2.0


class Worker:
    """A Ray actor that stands for one or more SuperNodes; imports their app once and keeps what it loaded."""

    def __init__(self, here: str, gpus: float, app: str) -> None:
        """``here``: the user's working folder. ``app``: the name of their own ClientApp; '': the project's."""
        self.see_gpus(gpus)
        if app:
            from perennial.client.own_app import own_app

            sys.path.insert(0, here)
            self._app = own_app(app)
        else:
            import perennial.client.app

            sys.path.append(here)
            self._app = perennial.client.app.app
        if "torch" in sys.modules:
            # One worker for each CPU: more threads would only fight for it.
            sys.modules["torch"].set_num_threads(1)
        self._run = 0

    @staticmethod
    def see_gpus(gpus: float) -> None:
        """Hide all GPUs from a worker that was given none: Ray hides them only from those that were given others."""
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""

    def machine(self) -> str:
        """Return the id of the machine that this worker is on; answered once it has started."""
        return str(ray.get_runtime_context().get_node_id())

    def handle(self, run: int, run_config: UserConfig, node_config: UserConfig, message: Message) -> Message:
        """Run the ClientApp for the message's node; what it raises becomes an error reply, as Flower does it.

        run: its number; nodes of another one are forgotten.
        """
        if run != self._run:
            self._run = run
            self._contexts: dict[int, Context] = {}
        node_id = message.metadata.dst_node_id
        context = self._contexts.setdefault(node_id, Context(RUN_ID, node_id, node_config, RecordDict(), run_config))
        try:
            return self._app(message, context)
        except Exception as error:  # whatever a client does wrong is its own round's loss, not the worker's end
            return app_raised(message, error)


class Workers:
    """At most ``most`` workers, one for each CPU (None: as many as there are).

    gpus: of each. app: what they run, as Worker has it.
    """

    def __init__(
        self, most: int | None = None, gpus: float = 0.0, actor: type = Worker, cpus: float = 1.0, app: str = ""
    ) -> None:
        make: Any = ray.remote(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
        )
        self._actor_class, self._most, self.gpus, self._cpus, self._app = make(actor), most, gpus, cpus, app
        # Workers that can be asked, and Ray's id of the machine of each.
        self._ready: dict[Any, str] = {}
        # Workers that start, by the reference that is there once they have.
        self._starting: dict[Any, Any] = {}
        self._broken = self._wanted = 0
        self._looked = float("-inf")
        self._names: dict[str, str] = {}
        self._room = 0
        self._said = ""

    def start(self, wanted: int, seconds: float) -> None:
        """Start as many workers as ``wanted`` nodes can use; wait ``seconds`` at most until they can answer."""
        self._wanted = wanted
        deadline = time.monotonic() + seconds
        self.look()
        while self._starting and len(self._ready) < self._useful() and (left := deadline - time.monotonic()) > 0:
            ray.wait(list(self._starting), num_returns=1, timeout=min(left, _LOOK_SECONDS))
            self.look()
        self._said = self._layout()

    def look(self) -> None:
        """Take in those that have started; start more if machines have joined. Raises RunError if none is left."""
        if time.monotonic() > self._looked + _LOOK_SECONDS:
            self._see_machines()
            while len(self._ready) + len(self._starting) + self._broken < self._useful():
                worker = self._actor_class.remote(os.getcwd(), self.gpus, self._app)
                self._starting[worker.machine.remote()] = worker
            self._looked = time.monotonic()
        if self._starting:
            started, _ = ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)
            for reference in started:
                self._take(reference)
        if self._said and (layout := self._layout()) != self._said:
            self._said = layout
            LOG.info("nodes live on %s", layout)

    def ask(self, place: int, avoid: Collection[str] = ()) -> Any | None:
        """Return the worker of the node at ``place``; None: there is none. avoid: machines, if others are there."""
        found = [worker for worker, machine in self._ready.items() if machine not in avoid] or list(self._ready)
        return found[place % len(found)] if found else None

    def machine(self, worker: Any) -> str:
        """Return the id of a worker's machine; '' if the worker is not there (any more)."""
        return self._ready.get(worker, "")

    def machines(self) -> set[str]:
        """Return the names of the machines that have workers which can be asked."""
        return {self.name(machine) for machine in self._ready.values()}

    def name(self, machine: str) -> str:
        """Return what its owner calls a machine, which is its address unless `ray start --node-name` says more."""
        return self._names.get(machine, machine[:8])

    def lost(self, worker: Any) -> None:
        """Note that a worker died or cannot be reached: it is asked again once Ray has started it again."""
        if self._ready.pop(worker, None) is not None:
            self._starting[worker.machine.remote()] = worker

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._ready, *self._starting.values()):
            ray.kill(worker)
        self._ready, self._starting = {}, {}

    def _useful(self) -> int:
        return min(self._wanted, self._room, self._wanted if self._most is None else self._most)

    def _see_machines(self) -> None:
        machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        alive = [machine for machine in machines if machine["Alive"]]
        if not alive:
            raise RunError("Ray has died under the run; --resume goes on from the last checkpoint")
        self._names |= _names(alive)
        self._room = sum(_room(machine["Resources"], self._cpus, self.gpus) for machine in alive)

    def _take(self, reference: Any) -> None:
        worker = self._starting.pop(reference)
        try:
            self._ready[worker] = ray.get(reference)
        except ray.exceptions.RayError as error:
            # Ray does not start again what cannot start.
            self._broken += 1
            LOG.warning("a worker cannot start: %s", " ".join(str(error).split())[-300:])
            if not self._ready and not self._starting:
                raise RunError("no worker can start; is the same Perennial installed on every machine?") from error

    def _layout(self) -> str:
        counts = Counter(self.name(machine) for machine in self._ready.values())
        return ", ".join(f"{name} ({count} workers)" for name, count in sorted(counts.items())) or "no machine"


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Return how many workers a machine with ``resources`` has room for."""
    by_cpu = resources.get("CPU", 0.0) / cpus if cpus else float("inf")
    by_gpu = resources.get("GPU", 0.0) / gpus if gpus else float("inf")
    room = min(by_cpu, by_gpu)
    return int(room) if room < float("inf") else 2**31


def _names(machines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the machines' names by Ray's id; those that share a name carry a part of the id too."""
    counts = Counter(machine["NodeName"] for machine in machines)
    return {
        one["NodeID"]: one["NodeName"] if counts[one["NodeName"]] == 1 else f"{one['NodeName']}#{one['NodeID'][:4]}"
        for one in machines
    }
