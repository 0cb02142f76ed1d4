"""The colours and dashes of runs and blocks, for the page and for the figures; nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perennial.server.report.columns import FloatArray

# Okabe and Ito's palette without its yellow, which is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#5B4B9A", "#8C6D46")
KNOWN = {"fedavg": "#6F7680", "mm-psgd": "#0072B2", "mc-psgd": "#D55E00"}
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (6, 1.5, 1, 1.5)))
# viridis up to 0.82: it rises evenly in lightness for every kind of colour vision; its yellow end is too pale on white.
_SHADES = ("#440154", "#482576", "#404588", "#34618d", "#297a8e", "#20938c", "#25ac82", "#4cc26c", "#86d549")


@dataclass(frozen=True)
class Style:
    """How a run is drawn, the same in every figure. dash: as matplotlib takes it, in units of the line's width."""

    color: str
    dash: Dash = "-"


def graded(count: int) -> list[Style]:
    """As many shades, from least to most, as an ordered setting has values."""
    anchors = np.array([to_rgb(shade) for shade in _SHADES])
    places = np.linspace(0.0, 1.0, len(_SHADES))
    mixed = [np.interp(np.linspace(0.0, 1.0, count), places, channel) for channel in anchors.T]
    return [Style(to_hex(color)) for color in np.stack(mixed, axis=1)]


def of_block(block: int) -> Style:
    """How a block is drawn where blocks are beside each other; when colours run out, again in dashes."""
    return Style(PALETTE[block % len(PALETTE)], DASHES[block // len(PALETTE) % len(DASHES)])


def to_rgb(color: str) -> FloatArray:
    """`#rrggbb` as three numbers in [0, 1]."""
    return np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])


def to_hex(color: FloatArray | Sequence[float]) -> str:
    return "#" + "".join(f"{round(255 * float(value)):02x}" for value in color)
