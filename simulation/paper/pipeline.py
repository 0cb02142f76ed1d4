"""From experiments to a page: parts are trained, what they found is kept as compact files, and the page is filled."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perennial.common.command import console
from perennial.common.command.errors import InputError
from perennial.server.report import reading
from perennial.simulation.paper import plan, series
from perennial.simulation.paper.plan import Part
from perennial.simulation.paper.series import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def train(parts: Sequence[Part], runs: Path, *, quick: bool, verbose: bool) -> None:
    """Run the parts one after the other; what is done is skipped, what was broken off goes on."""
    from perennial.server.report import html
    from perennial.simulation.passes import run_experiment

    for part in parts:
        experiments = plan.experiments(part, runs, quick=quick)
        for experiment in experiments:
            console.say(f"{experiment.title} -> {experiment.output}")
        run_experiment(plan.together(experiments, runs), resume=True, overwrite=False, verbose=verbose)
        for experiment in experiments:
            folders = [experiment.output / run.name for one in experiment.passes for run in one]
            html.write(experiment.output, [reading.read(folder) for folder in folders], experiment.title)


def found_in(places: Sequence[Path], parts: Sequence[Part]) -> dict[Part, list[Path]]:
    """Return the folders of each part: the places themselves, or folders in them, named PART or PART-seedK."""
    found: dict[Part, list[Path]] = {}
    for place in places:
        if not place.is_dir():
            raise InputError(f"{place} is no folder of runs")
        inside = [path for path in sorted(place.iterdir()) if path.is_dir()]
        for folder in [place] if _part(place, parts) else inside:
            if (part := _part(folder, parts)) and any(folder.glob("*/metrics.jsonl")):
                found.setdefault(part, []).append(folder)
    return found


def keep(there: Mapping[Part, Sequence[Path]], output: Path) -> None:
    """Put what the run folders of each part hold into its compact files, beside what these have of other seeds."""
    for part, folders in there.items():
        found = [series.from_result(one, part.key) for folder in folders for one in reading.read_all(folder)]
        if evaluated := [one for one in found if len(one.evaluated)]:
            series.write(output, part.name, series.furthest(series.read(output, part.name), evaluated))


def kept(parts: Sequence[Part], output: Path) -> dict[str, list[Series]]:
    """Return the series of each part by its name, out of the compact files."""
    return {part.name: series.read(output, part.name) for part in parts}


def draw(figures: Mapping[str, Figure], output: Path) -> list[Path]:
    """Write figures as PNG, each under its name."""
    from perennial.server.report.drawing import png

    drawn = {output / f"{name}.png": figure for name, figure in figures.items()}
    for path, figure in drawn.items():
        path.write_bytes(png(figure, dpi=110))
    return list(drawn)


def addresses(drawn: Sequence[Path], page: Path) -> dict[str, str]:
    """Return the addresses of figures as a page has them, by name."""
    return {path.stem: Path(os.path.relpath(path, page.parent)).as_posix() for path in drawn}


def _part(folder: Path, parts: Sequence[Part]) -> Part | None:
    name = re.sub(r"-seed\d+$", "", folder.resolve().name)
    return next((part for part in parts if part.name == name), None)
