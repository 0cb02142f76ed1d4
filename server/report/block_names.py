"""What a run calls its blocks, and the clock that tells which one it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec


def names_of(blocks: int, manifest: Mapping[str, object], config: Mapping[str, object]) -> tuple[str, ...]:
    """Return a name for each block: of the first source that has one for all of them."""
    spec = clock_of(config)
    for names in (manifest.get("blocks"), config.get("block-names"), spec.names if spec else ()):
        if isinstance(names, Sequence) and not isinstance(names, str) and len(names) == blocks:
            return tuple(f"block {name}" if str(name).isdigit() else str(name) for name in names)
    return tuple(f"block {block}" for block in range(blocks))


def clock_of(config: Mapping[str, object]) -> ClockSpec | None:
    """Return the clock that a configuration names; None: rounds are counted, or it is none that can be read."""
    text, zone = config.get("clock"), config.get("timezone", "UTC")
    if not (isinstance(text, str) and text and isinstance(zone, str)):
        return None
    with suppress(InputError):
        return ClockSpec.parse(text, zone)
    return None
