"""How a reader may refuse an input."""

from __future__ import annotations


def refused(error: Exception) -> bool:
    """Return False, for an input that was refused in one line that is short enough to read."""
    text = str(error)
    assert len(text) < 2000
    assert "\n" not in text
    return False
