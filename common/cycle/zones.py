"""Which names of time zones are taken: those that mean the same zone on every machine."""

from __future__ import annotations

import re
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from perennial.common.command.errors import InputError, shown

_EXAMPLE = "give a name such as Europe/Berlin"
# Names that a machine may know, and why no run may have them.
_REFUSED = {
    "localtime": "it means another zone on each machine",
    "posixrules": "it means another zone on each machine",
    "Factory": "it stands for a machine that was never given a zone",
}
_LEAP_SECONDS = "right/"
_OFFSET = re.compile(r"(?:UTC|GMT|UT|Z)?\s*([+-]|−)\s*(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)
# The zones Etc/GMT-14 to Etc/GMT+12 are this many hours east and west of Greenwich.
_FURTHEST = {"+": 14, "-": 12}


def check_zone(name: str) -> None:
    """Refuse a name that is no time zone, or not the same one everywhere; the InputError says what to write."""
    if name in _REFUSED or name.startswith(_LEAP_SECONDS):
        reason = _REFUSED.get(name, "it counts leap seconds, and clocks do not")
        raise InputError(f"time zone {shown(name)} is not taken: {reason}; {_EXAMPLE}")
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InputError(f"unknown time zone {shown(name)}; {_remedy(name)}") from error


def _remedy(name: str) -> str:
    """Return what to write instead: for an offset its zone, else the name that was probably meant."""
    if offset := _OFFSET.fullmatch(name.strip()):
        return _zone_of(offset)
    nearest = get_close_matches(name, available_timezones() - _REFUSED.keys(), 1)
    return f"did you mean {nearest[0]}?" if nearest else _EXAMPLE


def _zone_of(offset: re.Match[str]) -> str:
    east, hours = "+" if offset[1] == "+" else "-", int(offset[2])
    if int(offset[3] or 0) or hours > _FURTHEST[east]:
        return "an offset is no zone: give the name of a place there, such as Asia/Kolkata"
    zone = f"Etc/GMT{'-' if east == '+' else '+'}{hours}" if hours else "UTC"
    turned = " (its sign is turned round)" if hours else ""
    return (
        f"for UTC{east}{hours} in summer and winter write {zone}{turned}, for a place with its daylight saving a name "
        "such as Europe/Berlin"
    )
