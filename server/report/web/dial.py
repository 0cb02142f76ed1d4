"""The block clock as a dial: a ring of the cycle's blocks, and a hand where the run is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from perennial.server.report import markup
from perennial.server.report.palette import of_block

_RADIUS, _MIDDLE = 80.0, 110.0
# Arcs below this part of the ring would be nothing but their gap.
_GAP = 0.004


@dataclass(frozen=True)
class Arc:
    """A stretch of the ring that belongs to a block; first and last in turns, from 0 to 1."""

    block: int
    first: float
    last: float


@dataclass(frozen=True)
class Dial:
    """hand: where the run is, in turns; None: nowhere yet. marks: texts around the ring, by turns."""

    names: Sequence[str]
    arcs: Sequence[Arc]
    hand: float | None
    block: int | None
    marks: Sequence[tuple[float, str]] = ()
    said: str = ""


def draw(dial: Dial) -> str:
    """The dial with its legend; what it shows is said in words too."""
    ring = "".join(_arc(arc, current=arc.block == dial.block) for arc in dial.arcs)
    texts = "".join(_mark(turns, text) for turns, text in dial.marks)
    legend = "".join(_named(block, name, current=block == dial.block) for block, name in enumerate(dial.names))
    size = 2 * _MIDDLE
    return (
        f'<figure class="dial" id="dial"><svg viewBox="0 0 {size:g} {size:g}" role="img" '
        f'aria-label="{escape(dial.said)}">{ring}{texts}{_hand(dial.hand)}</svg>'
        f'<ul class="legend">{legend}</ul></figure>'
    )


def _named(block: int, name: str, *, current: bool) -> str:
    state = ' class="current" aria-current="true"' if current else ""
    return f"<li{state}>{markup.key(of_block(block))}{escape(name)}</li>"


def _arc(arc: Arc, *, current: bool) -> str:
    first, last = arc.first, arc.last
    if last - first > 2 * _GAP:
        last -= _GAP
    color = of_block(arc.block).color
    kind = "arc current" if current else "arc"
    if last - first > 0.999 - _GAP:
        return f'<circle class="{kind}" style="--c:{color}" cx="{_MIDDLE:g}" cy="{_MIDDLE:g}" r="{_RADIUS:g}"/>'
    large = int(last - first > 0.5)
    path = f"M{_point(first, _RADIUS)}A{_RADIUS:g} {_RADIUS:g} 0 {large} 1 {_point(last, _RADIUS)}"
    return f'<path class="{kind}" style="--c:{color}" d="{path}"/>'


def _hand(turns: float | None) -> str:
    if turns is None:
        return ""
    return (
        f'<path class="hand" d="M{_MIDDLE:g} {_MIDDLE:g}L{_point(turns, _RADIUS - 14)}"/>'
        f'<circle class="hub" cx="{_MIDDLE:g}" cy="{_MIDDLE:g}" r="5"/>'
    )


def _mark(turns: float, text: str) -> str:
    x, y = _point(turns, _RADIUS + 21).split()
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'


def _point(turns: float, radius: float) -> str:
    """A place on a circle, from its top and clockwise."""
    angle = 2 * math.pi * turns
    return f"{_MIDDLE + radius * math.sin(angle):.5g} {_MIDDLE - radius * math.cos(angle):.5g}"
