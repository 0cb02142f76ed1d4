"""Where replies wait until the strategy has taken them: so many bytes, and first come, first served.

A reply is let in before its body is read, so that a thousand devices which answer at once take no more memory than a
few do. The others are kept waiting with nothing but the heads of their requests.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

from perennial.server.link.fleet_keys import Refusal

# Seconds that a reply waits at the door before it is told to come back, and then between.
_PATIENCE, _RETRY = 30.0, (1.0, 10.0)
_MOST_QUEUED = 20_000


class Hall:
    """Bytes of replies that are arriving, or have arrived and were not taken. All methods are for one event loop."""

    def __init__(self, most: int) -> None:
        self._most, self.used = most, 0
        self._queue: deque[tuple[int, Callable[[], bool], asyncio.Future[bool]]] = deque()

    async def enter(self, size: int, gone: Callable[[], bool] = lambda: False) -> None:
        """Return once there is room for ``size`` bytes; a single reply fits always. Raises ``Refusal``.

        gone: whether whoever waits has hung up; it is then passed over.
        """
        if not self._queue and self._fits(size):
            self.used += size
            return
        if len(self._queue) >= _MOST_QUEUED:
            raise _later()
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._queue.append((size, gone, turn))
        try:
            let_in = await asyncio.wait_for(turn, _PATIENCE)
        except TimeoutError:
            raise _later() from None
        if not let_in:
            raise _later()

    def leave(self, size: int) -> None:
        """Make room, and let in who is next."""
        self.used -= size
        while self._queue:
            size, gone, turn = self._queue[0]
            passed_over = turn.done() or gone()
            if not passed_over and not self._fits(size):
                return
            self._queue.popleft()
            if not turn.done():
                self.used += 0 if passed_over else size
                turn.set_result(not passed_over)

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._most


def _later() -> Refusal:
    # Spread in time, so that they do not come back as one.
    return Refusal(503, "too many replies are on their way", retry=random.uniform(*_RETRY))
