"""``python -m perennial.simulation.real``: run the experiments on real data, and write what they found into a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from perennial.common.command import console, extras, places
from perennial.simulation.paper import pipeline, plan
from perennial.simulation.real.contenders import PARTS


def make(options: argparse.Namespace) -> int:
    """Train what is not done yet, and fill the page from all that there is."""
    for extra in ("simulation", "real"):
        extras.need(extra)
    from perennial.simulation.paper import page
    from perennial.simulation.real import dots, gains

    chosen = plan.chosen(options.only, PARTS)
    before = places.page(options.page)
    places.folder(options.output)
    runs = places.folder(options.runs)
    if not options.collect:
        pipeline.train(chosen, runs, quick=False, verbose=options.verbose)
    pipeline.keep(pipeline.found_in([runs], PARTS), options.output)
    found = pipeline.kept(PARTS, options.output)
    images = pipeline.addresses(pipeline.draw(dots.draw(found), options.output), options.page)
    texts = {name: f"![{name}]({address})" for name, address in images.items()}
    for name, series in found.items():
        texts |= {name: gains.table(series), f"{name} sentence": gains.sentence(series)}
        texts[f"{name} movement"] = gains.movement(series)
        texts[f"{name} state"] = page.state(series)
    options.page.write_text(page.filled(before, texts), encoding="utf-8")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code, as `flower-simulation` does."""
    options = _parser().parse_args(arguments)
    console.log_to_console(verbose=options.verbose)
    return console.run(lambda: make(options), "real", verbose=options.verbose, interrupted="the same command goes on")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perennial.simulation.real", description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="show Flower's and Ray's own messages, and tracebacks")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="one data set; may be repeated")
    parser.add_argument("--collect", action="store_true", help="train nothing; fill the page from what is there")
    parser.add_argument("--runs", type=Path, default=Path("runs/real"), metavar="DIR",
                        help="folder of run folders (default: runs/real)")  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("docs/results/real"), metavar="DIR",
                        help="folder for CSV and PNG (default: docs/results/real)")  # fmt: skip
    parser.add_argument("--page", type=Path, default=Path("docs/real-data.md"), metavar="FILE.md",
                        help="page whose tables are to be written (default: docs/real-data.md)")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
