"""Requests that come together are answered together: one call of the network for all of its examples.

Nobody waits for others to come: what is there when the network is free makes a batch. A network that answers within a
moment is called on the event loop itself, since a thread costs more than it does; others in a thread, one call at a
time.
"""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from perennial.common.data.examples import Inputs
from perennial.server.link.fleet_keys import Refusal
from perennial.server.predict.predictor_network import PredictorNetwork

Outputs = tuple[NDArray[Any], ...]
# Examples of one call; a request with more is a call of its own.
MOST_ROWS = 256
# How long the event loop may be held up by a call.
_MOMENT = 0.002


@dataclass
class _Ask:
    x: Inputs
    answered: asyncio.Future[Outputs]

    @property
    def rows(self) -> int:
        return len(self.x[0])


@dataclass
class _Queue:
    """What waits for one network. quick: so many examples it answers within a moment, as far as is known."""

    waiting: list[_Ask] = field(default_factory=list)
    busy: bool = False
    quick: int = 1

    def take(self) -> list[_Ask]:
        """Return the next batch, in the order of arrival."""
        rows, count = 0, 0
        for ask in self.waiting:
            rows += ask.rows
            if count and rows > MOST_ROWS:
                break
            count += 1
        batch, self.waiting = self.waiting[:count], self.waiting[count:]
        return batch

    def learn(self, rows: int, seconds: float) -> None:
        """Note how long a call took."""
        self.quick = max(self.quick, rows) if seconds < _MOMENT else min(self.quick, rows // 2)


class Batches:
    """Calls networks. For one event loop. said: hears the examples of each call and its seconds."""

    def __init__(self, said: Any = lambda rows, seconds: None) -> None:
        self._queues: WeakKeyDictionary[PredictorNetwork, _Queue] = WeakKeyDictionary()
        # One call at a time: torch has threads of its own.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")
        self._said = said

    async def ask(self, network: PredictorNetwork, x: Inputs) -> Outputs:
        """Return the network's outputs for examples that were checked. Raises ``Refusal``."""
        loop = asyncio.get_running_loop()
        queue = self._queues.get(network)
        if queue is None:
            queue = self._queues[network] = _Queue()
        answered: asyncio.Future[Outputs] = loop.create_future()
        queue.waiting.append(_Ask(x, answered))
        if not queue.busy:
            queue.busy = True
            # After the requests that have arrived with this one.
            loop.call_soon(self._next, network, queue)
        return await answered

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self, network: PredictorNetwork, queue: _Queue) -> None:
        if not (batch := queue.take()):
            queue.busy = False
            return
        loop = asyncio.get_running_loop()
        rows = sum(ask.rows for ask in batch)
        # Twice as many as before are tried, so that what is quick is found out.
        if rows <= 2 * queue.quick:
            self._done(network, queue, batch, *_timed(network, batch))
        else:
            call = loop.run_in_executor(self._thread, _timed, network, batch)
            call.add_done_callback(functools.partial(self._come_back, network, queue, batch))

    def _come_back(self, network: PredictorNetwork, queue: _Queue, batch: list[_Ask], call: Any) -> None:
        if not call.cancelled():
            self._done(network, queue, batch, *call.result())

    def _done(
        self,
        network: PredictorNetwork,
        queue: _Queue,
        batch: list[_Ask],
        found: list[Outputs | Refusal],
        seconds: float,
    ) -> None:
        rows = sum(ask.rows for ask in batch)
        queue.learn(rows, seconds)
        self._said(rows, seconds)
        for ask, outputs in zip(batch, found, strict=True):
            if ask.answered.done():
                continue  # whoever asked has hung up
            if isinstance(outputs, Refusal):
                ask.answered.set_exception(outputs)
            else:
                ask.answered.set_result(outputs)
        if queue.waiting:
            asyncio.get_running_loop().call_soon(self._next, network, queue)
        else:
            queue.busy = False


def _timed(network: PredictorNetwork, batch: list[_Ask]) -> tuple[list[Outputs | Refusal], float]:
    begin = time.perf_counter()
    found = _answers(network, batch)
    return found, time.perf_counter() - begin


def _answers(network: PredictorNetwork, batch: list[_Ask]) -> list[Outputs | Refusal]:
    """Return the outputs of each; a request that the network does not take spoils no other one."""
    x = (
        batch[0].x
        if len(batch) == 1
        else tuple(np.concatenate(each) for each in zip(*(ask.x for ask in batch), strict=True))
    )
    try:
        outputs = network.outputs(x)
    except Exception as error:  # someone else's network: whatever it raises says that it does not take them
        if len(batch) > 1:
            return [_answers(network, [ask])[0] for ask in batch]
        reason = " ".join(str(error).split())[:200]
        return [Refusal(400, f"the network does not take these examples: {type(error).__name__}: {reason}")]
    if len(batch) == 1:
        return [outputs]
    ends = np.cumsum([ask.rows for ask in batch])[:-1]
    return list(zip(*(np.split(one, ends) for one in outputs), strict=True))
