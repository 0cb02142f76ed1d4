"""``python -m perennial.simulation.paper``: run the paper's experiments, and collect what they found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from perennial.common.command import console, extras, places
from perennial.simulation.paper import pipeline, plan, summary
from perennial.simulation.paper.plan import PARTS


def run(options: argparse.Namespace) -> int:
    """Run the parts one after the other; what is done is skipped, what was broken off goes on."""
    extras.need("simulation")
    chosen = plan.chosen(options.only)
    runs = places.folder(options.runs or Path("runs/paper-quick" if options.quick else "runs/paper"))
    pipeline.train(chosen, runs, quick=options.quick, verbose=options.verbose)
    return 0


def collect(options: argparse.Namespace) -> int:
    """Put what the run folders hold into compact files, and draw and write everything from those."""
    extras.need("simulation")
    from perennial.simulation.paper import charts, mix, page

    pages = {address: places.page(address) for address in options.page}
    there = pipeline.found_in(options.runs, PARTS)
    places.folder(options.output)
    pipeline.keep(there, options.output)
    figure2 = next((folders for part, folders in there.items() if part.name == "figure2"), [])
    if told := [one for folder in figure2 for one in mix.measure(folder)]:
        mix.write(options.output, told)
    found = pipeline.kept(PARTS, options.output)
    whole = summary.completed(found)
    drawn = pipeline.draw(charts.draw(whole), options.output)
    parts = page.parts(whole, mix.read(options.output)) | page.states(found)
    for address, before in pages.items():
        filled = page.filled(before, page.illustrated(parts, pipeline.addresses(drawn, address)))
        address.write_text(filled, encoding="utf-8")
    if not pages:
        print("\n\n".join(f"### {name}\n\n{text}" for name, text in parts.items()))
    return 0


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
    collecting.add_argument("--page", type=Path, nargs="+", default=[], metavar="FILE.md",
                            help="pages to write the tables to, between the markers that they have")  # fmt: skip
    collecting.set_defaults(command=collect)
    return parser


if __name__ == "__main__":
    sys.exit(main())
