"""A clock that can be wrong. To be imported before anything else takes hold of ``time.time``."""

from __future__ import annotations

import time
from datetime import timedelta

_real, _off = time.time, [0.0]
time.time = lambda: _real() + _off[0]


def put_wrong(minutes: float) -> None:
    """Put the clock of this process forward, also the one by which Flower dates messages."""
    from flwr.app.message import message

    right = message.now
    _off[0] = 60.0 * minutes
    message.now = lambda: right() + timedelta(minutes=minutes)
