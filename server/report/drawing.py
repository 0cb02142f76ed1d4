"""What every figure is drawn with: colours, dashes, bare axes, lines and legends. Nothing global is changed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from perennial.server.report.columns import FloatArray
from perennial.server.report.palette import DASHES as DASHES
from perennial.server.report.palette import KNOWN as KNOWN
from perennial.server.report.palette import PALETTE as PALETTE
from perennial.server.report.palette import Style as Style
from perennial.server.report.palette import graded as graded

INK, FAINT, GRID, TINT = "#22262e", "#6b7280", "#e3e6ea", "#f1f3f6"
POINTS_WITH_MARKERS = 30


def blank(width: float, height: float, title: str = "") -> Figure:
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06), facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    return figure


def dress(axes: Axes, across: str = "", up: str = "", ticks: int = 7) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#aab0b8")
    axes.tick_params(colors=FAINT, labelsize=9, length=0)
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8 if ticks > 4 else 5, steps=[1, 2, 5, 10]))
    axes.set_xlabel(across, color=FAINT, fontsize=9)
    axes.set_ylabel(up, color=FAINT, fontsize=9)
    axes.margins(x=0.0, y=0.06)


def line(axes: Axes, x: NDArray[Any], y: FloatArray, style: Style, width: float = 1.6) -> None:
    marker = "o" if len(x) <= POINTS_WITH_MARKERS else ""
    axes.plot(x, y, color=style.color, linestyle=style.dash, linewidth=width, marker=marker, markersize=3.5)


def legend(figure: Figure, looks: Mapping[str, Style]) -> None:
    """A legend of names below the figure, in as many columns as fit."""
    lines = [Line2D([], [], color=style.color, linestyle=style.dash, linewidth=2) for style in looks.values()]
    columns = max(1, min(len(looks), 6, 120 // (max(len(name) for name in looks) + 6)))
    figure.legend(
        lines,
        [plain(name) for name in looks],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=2.4,
    )


def plain(text: str) -> str:
    """`text` so that it is shown literally: no mathematics between dollar signs, no label hidden by a leading `_`."""
    shown = "".join(char if char.isprintable() else "?" for char in text).replace("$", r"\$")
    return "\u200b" + shown if shown.startswith("_") else shown


def png(figure: Figure, dpi: int = 150) -> bytes:
    """The figure as a PNG file's bytes; the same figure gives the same bytes."""
    buffer = BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes here; the report's tables have it right.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()
