"""OUTPUT/report.html: one file that needs nothing else. OUTPUT/figures/*.png: figures for papers and slides.

The page that is live while a run goes on (``web/live.py``) is made of the same parts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perennial.common.command import extras
from perennial.server.report import markup
from perennial.server.report.columns import RunResult
from perennial.server.report.web.contents import contents

FIGURES = ("accuracy", "accuracy-per-block", "chosen", "bytes", "train-loss")


def write(output: Path, runs: Sequence[RunResult], title: str) -> Path:
    """Write the figures and the report of `runs` (at least one) into `output`, and return the report's path.

    Figures need matplotlib, and are left out without it; those of an earlier report that these runs have nothing for
    are removed. The same runs give the same bytes.
    """
    if not runs:
        raise ValueError("a report needs at least one run, got none")
    if "matplotlib" not in extras.missing("ray"):
        _write_figures(output / "figures", runs)
    path = output / "report.html"
    # Written beside and renamed, so that a report is never found half written.
    beside = output / ".report.html.part"
    beside.write_text(page(runs, title), encoding="utf-8")
    os.replace(beside, path)
    return path


def page(runs: Sequence[RunResult], title: str) -> str:
    """The report as one HTML document. Nothing is loaded from elsewhere."""
    return markup.document(title, contents(runs))


def _write_figures(folder: Path, runs: Sequence[RunResult]) -> None:
    from perennial.server.report import drawing, plots

    folder.mkdir(parents=True, exist_ok=True)
    images = {name: drawing.png(figure) for name, figure in plots.draw(runs).items()}
    for name in FIGURES:
        (folder / f"{name}.png").unlink(missing_ok=True)
    for name, image in images.items():
        (folder / f"{name}.png").write_bytes(image)
