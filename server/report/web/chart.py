"""A line chart as HTML and SVG: it fits any width without a script, and its numbers are in a table below it.

The lines are stretched with the page, so everything that must keep its shape (strokes, dots, texts) does not scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.server.report import markup
from perennial.server.report.columns import FloatArray
from perennial.server.report.palette import Style

# What a line has at most, so that the page of a long run stays small; and the rows of its table.
_MOST_POINTS, _MOST_ROWS, _DOTTED = 300, 30, 30
_SIDE = 1000  # of the square that is stretched
_PAPER_THIN = 1e-12


@dataclass(frozen=True, eq=False)
class ChartLine:
    """A line of a chart, x ascending; NaN in y is a gap."""

    name: str
    x: NDArray[Any]
    y: FloatArray
    style: Style


@dataclass(frozen=True)
class Band:
    """A stretch of x that is shaded if `tinted`, with a text at its upper end; `color`: a strip at the lower one."""

    first: float
    last: float
    text: str = ""
    tinted: bool = False
    color: str = ""


@dataclass(frozen=True, eq=False)
class Chart:
    """limits: of y; None: what the lines need. write: a value of y in words, for the table and the legend."""

    ident: str
    title: str
    across: str
    up: str
    curves: Sequence[ChartLine]
    bands: Sequence[Band] = ()
    limits: tuple[float, float] | None = None
    write: Callable[[float], str] = "{:.4g}".format
    legend: bool = True
    small: bool = False


def draw(chart: Chart) -> str:
    """The chart as a figure, with a legend that has the last values, and the numbers in a table that opens."""
    low, high = _span(chart)
    bottom, top, steps = _scale(chart)
    plot = _svg(chart, (low, high), (bottom, top), steps)
    marks = [
        *(_label("y", 100 * (top - step) / (top - bottom), _number(step)) for step in steps),
        *(_label("x", 100 * (step - low) / (high - low), _number(step)) for step in _ticks(low, high, 6)),
        *(
            _label("band" if band.tinted else "band wide", 100 * (band.first - low) / (high - low), band.text)
            for band in chart.bands
            if band.text
        ),
    ]
    said = f"{chart.title}: {chart.up} by {chart.across}. " + _spoken(chart)
    body = (
        f'<div class="plot{" small" if chart.small else ""}" role="img" aria-label="{escape(said)}">'
        f"{plot}{''.join(marks)}"
        f'<span class="across">{escape(chart.across)}</span></div>'
    )
    unit = "" if chart.small else f" <small>{escape(chart.up)}</small>"
    return (
        f'<figure id="{chart.ident}"><h3>{escape(chart.title)}{unit}</h3>{body}{_legend(chart) if chart.legend else ""}'
        f"{numbers(chart)}</figure>"
    )


def numbers(chart: Chart) -> str:
    """The chart's numbers as a table: evenly chosen rows if there are many, the last one always."""
    xs = np.unique(np.concatenate([curve.x[np.isfinite(curve.y)] for curve in chart.curves] or [np.zeros(0)]))
    shown = xs[_even(len(xs), _MOST_ROWS)]
    found = [dict(zip(curve.x.tolist(), curve.y.tolist(), strict=True)) for curve in chart.curves]
    rows = [
        [escape(_number(x)), *(escape(_written(chart, one.get(x, math.nan))) for one in found)]
        for x in shown[::-1].tolist()
    ]
    head = [escape(chart.across), *(escape(curve.name) for curve in chart.curves)]
    ident = f"{chart.ident}-numbers"
    table = markup.table(head, rows, ident=f"{ident}-table", label=f"The numbers of: {chart.title}")
    return f'<details id="{ident}"><summary>Numbers of this chart</summary>{table}</details>' if rows else ""


def _svg(chart: Chart, across: tuple[float, float], up: tuple[float, float], steps: Sequence[float]) -> str:
    def place(x: float, y: float) -> str:
        return f"{_at(x, *across):.5g} {_SIDE - _at(y, *up):.5g}"

    parts = [f'<path class="grid" d="{"".join(f"M0 {_SIDE - _at(step, *up):.5g}H{_SIDE}" for step in steps)}"/>']
    for band in chart.bands:
        left, right = _at(band.first, *across), _at(band.last, *across)
        box = f'x="{left:.5g}" width="{right - left:.5g}"'
        if band.tinted:
            parts.insert(0, f'<rect class="tint" {box} y="0" height="{_SIDE}"/>')
        if band.color:
            parts.append(f'<rect class="strip" style="--c:{band.color}" {box} y="{_SIDE - 22}" height="22"/>')
    for curve in chart.curves:
        kept = _even(len(curve.x), _MOST_POINTS)
        points = list(zip(curve.x[kept].tolist(), curve.y[kept].tolist(), strict=True))
        stretches = _stretches(points)
        path = "".join("M" + "L".join(place(*point) for point in stretch) for stretch in stretches)
        dots = "".join(f"M{place(*point)}h0" for point in points if math.isfinite(point[1]))
        look = f'style="--c:{curve.style.color}"'
        if path:
            parts.append(f'<path class="line" {look}{_dashes(curve.style)} d="{path}"/>')
        if 0 < len(points) <= _DOTTED:
            parts.append(f'<path class="dots" {look} d="{dots}"/>')
    return (
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f"{''.join(parts)}</svg>"
    )


def _legend(chart: Chart) -> str:
    items = []
    for curve in chart.curves:
        value = _last(curve)
        shown = f" <b>{escape(_written(chart, value))}</b>" if math.isfinite(value) else ""
        items.append(f"<li>{markup.key(curve.style)}{escape(curve.name)}{shown}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _spoken(chart: Chart) -> str:
    """The last values, for those who do not see the lines."""
    values = [(curve.name, _last(curve)) for curve in chart.curves]
    said = [f"{name} {_written(chart, value)}" for name, value in values if math.isfinite(value)]
    return f"The last values: {', '.join(said[:20])}." if said else "Nothing was measured yet."


def _written(chart: Chart, value: float) -> str:
    return chart.write(value) if math.isfinite(value) else "-"


def _last(curve: ChartLine) -> float:
    finite = curve.y[np.isfinite(curve.y)]
    return float(finite[-1]) if len(finite) else math.nan


def _span(chart: Chart) -> tuple[float, float]:
    """The ends of x: from 0 to the last of the lines and bands."""
    ends = [float(curve.x[-1]) for curve in chart.curves if len(curve.x)]
    return 0.0, max([1.0, *ends, *(band.last for band in chart.bands)])


def _scale(chart: Chart) -> tuple[float, float, list[float]]:
    """The lower and the upper end of y, and where its lines are."""
    if chart.limits:
        low, high = chart.limits
    else:
        finite = np.concatenate([curve.y[np.isfinite(curve.y)] for curve in chart.curves] or [np.zeros(0)])
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        room = 0.06 * (high - low) or max(abs(high) * 0.06, 0.5)
        low, high = low - room if low else 0.0, high + room
    return low, high, _ticks(low, high, 3 if chart.small else 5)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers in [low, high], at most `most` and a few more."""
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * (1 - _PAPER_THIN))
    return [at * step for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _even(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of `count` places, evenly, the first and the last among them."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)) if count else np.zeros(0, int)
    )


def _stretches(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    found: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if math.isfinite(point[1]):
            found[-1].append(point)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if len(stretch) > 1]


def _at(value: float, low: float, high: float) -> float:
    return _SIDE * (value - low) / (high - low)


def _dashes(style: Style) -> str:
    if style.dash == "-":
        return ""
    return f' stroke-dasharray="{" ".join(f"{2 * part:g}" for part in style.dash[1])}"'


def _label(kind: str, percent: float, text: str) -> str:
    side = "top" if kind == "y" else "left"
    return f'<span class="{kind}" style="{side}:{percent:.4g}%">{escape(text)}</span>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
