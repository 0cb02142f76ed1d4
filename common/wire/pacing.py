"""How long to wait before asking again: in proportion to the time already waited."""

from __future__ import annotations

# A wait of this share of the time waited so far makes an answer at most this much late.
SHARE = 0.05
# A server that was killed has its fleet back within seconds of its start; one that is away for longer than some minutes
# is asked less often, and has its fleet back this share of its absence later, or within _LONGEST.
_SOON, _LONGEST, _SHARE_AWAY = 2.0, 15.0, 0.005


def pause(waited: float, *, least: float, most: float) -> float:
    """Return seconds until the next question, ``waited`` seconds after the first one.

    Quick rounds are asked after quickly and slow ones seldom: n questions cover a time that grows like 1.05^n.
    """
    return min(most, max(least, SHARE * waited))


def backoff(attempt: int, jitter: float) -> float:
    """Return seconds to wait after failure number ``attempt`` (0-based) in a row: 1, 2, 2, and after 400 s more.

    jitter: in [0, 1); spreads the waits, so that a fleet does not come back as one.
    """
    first = min(_SOON, 2.0 ** min(attempt, 30))
    return float(min(_LONGEST, max(first, _SHARE_AWAY * _SOON * attempt))) * (0.75 + 0.5 * jitter)
