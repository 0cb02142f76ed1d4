"""``python -m perennial.simulation.paper``: run the paper's experiments, and collect what they found."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from perennial.common.command import console, extras, places
from perennial.common.command.errors import InputError
from perennial.server.report import reading
from perennial.simulation.paper import plan, series, summary
from perennial.simulation.paper.plan import PARTS, Part


def run(options: argparse.Namespace) -> int:
    """Run the parts one after the other; what is done is skipped, what was broken off goes on."""
    extras.need("simulation")
    from perennial.server.report import html
    from perennial.simulation.passes import run_experiment

    chosen = plan.chosen(options.only)
    runs = places.folder(options.runs or Path("runs/paper-quick" if options.quick else "runs/paper"))
    for part in chosen:
        for experiment in plan.experiments(part, runs, quick=options.quick):
            console.say(f"{experiment.title} -> {experiment.output}")
            folders = run_experiment(experiment, resume=True, overwrite=False, verbose=options.verbose)
            html.write(experiment.output, [reading.read(folder) for folder in folders], experiment.title)
    return 0


def collect(options: argparse.Namespace) -> int:
    """Put what the run folders hold into compact files, and draw and write everything from those."""
    extras.need("simulation")
    from perennial.server.report.drawing import png
    from perennial.simulation.paper import charts, mix, page

    before = places.page(options.page) if options.page else ""
    there = found_in(options.runs)
    places.folder(options.output)
    for part, folders in there.items():
        kept = [series.from_result(one, part.key) for folder in folders for one in reading.read_all(folder)]
        if evaluated := [one for one in kept if len(one.evaluated)]:
            series.write(options.output, part.name, sorted(evaluated, key=lambda one: (one.run, one.seed)))
        if part.name == "figure2" and (told := [one for folder in folders for one in mix.measure(folder)]):
            mix.write(options.output, told)
    found = {part.name: series.read(options.output, part.name) for part in PARTS}
    whole = summary.completed(found)
    drawn = {options.output / f"{name}.png": figure for name, figure in charts.draw(whole).items()}
    for path, figure in drawn.items():
        path.write_bytes(png(figure, dpi=110))
    parts = page.parts(whole, mix.read(options.output)) | page.states(found)
    if options.page:
        addresses = {path.stem: Path(os.path.relpath(path, options.page.parent)).as_posix() for path in drawn}
        options.page.write_text(page.filled(before, page.illustrated(parts, addresses)), encoding="utf-8")
    else:
        print("\n\n".join(f"### {name}\n\n{text}" for name, text in parts.items()))
    return 0


def found_in(places: Sequence[Path]) -> dict[Part, list[Path]]:
    """Return the folders of each part: the places themselves, or folders in them, named PART or PART-seedK."""
    found: dict[Part, list[Path]] = {}
    for place in places:
        if not place.is_dir():
            raise InputError(f"{place} is no folder of runs")
        inside = [path for path in sorted(place.iterdir()) if path.is_dir()]
        for folder in [place] if _part(place) else inside:
            if (part := _part(folder)) and any(folder.glob("*/metrics.jsonl")):
                found.setdefault(part, []).append(folder)
    return found


def _part(folder: Path) -> Part | None:
    name = re.sub(r"-seed\d+$", "", folder.resolve().name)
    return next((part for part in PARTS if part.name == name), None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code, as `flower-simulation` does."""
    options = _parser().parse_args(arguments)
    console.log_to_console(verbose=options.verbose)
    return console.run(
        lambda: options.command(options),
        "paper",
        verbose=options.verbose,
        interrupted="the same command goes on",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perennial.simulation.paper", description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="show Flower's and Ray's own messages, and tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="run the experiments; what is done is skipped")
    running.add_argument(
        "--runs", type=Path, metavar="DIR", help="folder of run folders (default: runs/paper, runs/paper-quick)"
    )
    running.add_argument("--only", action="append", default=[], metavar="NAME", help="one experiment; may be repeated")
    running.add_argument("--quick", action="store_true", help="few rounds, on digits: to see that it works")
    running.set_defaults(command=run)
    collecting = commands.add_parser("collect", help="turn run folders into CSV, PNG and tables")
    collecting.add_argument("runs", type=Path, nargs="*", metavar="RUNS",
                            help="run folders, or folders of them; of an experiment all seeds at once")  # fmt: skip
    collecting.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for CSV and PNG")
    collecting.add_argument("--page", type=Path, metavar="FILE.md", help="page whose tables are to be written")
    collecting.set_defaults(command=collect)
    return parser


if __name__ == "__main__":
    sys.exit(main())
