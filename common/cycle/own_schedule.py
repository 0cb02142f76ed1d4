"""A schedule of a user's own, which the key ``clock`` names as ``package.module:name``."""

from __future__ import annotations

import re

from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import imported
from perennial.common.cycle.schedule import Schedule

# The windows of a clock have a minus sign, a comma or a space at least, and so are never a name.
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")
_MEMBERS = ("names", "cycles", "total_rounds", "identity", "after")


def names_a_schedule(clock: str) -> bool:
    """Tell whether the key ``clock`` names a user's schedule; else it has the windows of the blocks."""
    return _NAME.fullmatch(clock) is not None


def own_schedule(name: str, config: object) -> Schedule:
    """Return the schedule that the function called ``name`` makes of a run's configuration."""
    make = imported("clock", name)
    if not callable(make):
        raise InputError(f"clock {name!r} must be a function of the configuration, got {type(make).__name__}")
    try:
        schedule = make(config)
    except InputError:
        raise
    except Exception as error:  # someone else's code: whatever it raises says that it does not fit
        raise InputError(f"clock {name!r} makes no schedule: {type(error).__name__}: {error}") from error
    if lacking := [member for member in _MEMBERS if not hasattr(schedule, member)]:
        raise InputError(f"clock {name!r} must return a Schedule; {shown(schedule)} has no {', '.join(lacking)}")
    return schedule  # type: ignore[no-any-return]
