"""``python -m perennial.simulation.theory``: measure the theorems, and write tables and figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from perennial.common.command import console, extras, places
from perennial.simulation.theory import tabulate
from perennial.simulation.theory.study import FULL, QUICK, Study, measure_all

TITLES = {
    "slow": "Slow directions: excess loss of the predictors falls as the bounds do",
    "fast": "No slow directions: the chains fall as the bounds do, their averages faster",
    "diverse": "Diverse blocks: predictors beat the one best model, FedAvg's last model forgets",
}


def write(study: Study, output: Path) -> str:
    """Run the study, write its files into ``output``, and return the slopes as Markdown."""
    extras.need("simulation")
    from perennial.server.report.drawing import png
    from perennial.simulation.theory import figures

    places.folder(output)
    problems: list[tabulate.Row] = []
    excess: list[tabulate.Row] = []
    slopes: list[tabulate.Row] = []
    blocks = sorted({setting.blocks for sweep in study.sweeps for setting in sweep.settings()})
    clients = max(setting.clients for sweep in study.sweeps for setting in sweep.settings())
    for bench, settings in measure_all(study, console.say):
        name = bench.regime.name
        problems.append(tabulate.problem_row(bench, blocks, clients))
        excess += tabulate.excess_rows(settings)
        slopes += tabulate.slope_rows(settings)
        # A slope needs positive numbers: where the excess falls below zero the axis is linear.
        negative = any((setting.excess["mm"].mean() <= 0.0) for setting in settings)
        drawn = (figures.signs if negative else figures.rates)(settings, TITLES[name])
        (output / f"{name}.png").write_bytes(png(drawn, dpi=130))
    tabulate.write_csv(output / "problems.csv", problems)
    tabulate.write_csv(output / "excess.csv", excess)
    tabulate.write_csv(output / "slopes.csv", slopes)
    return tabulate.markdown(slopes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code, as `flower-simulation` does."""
    parser = argparse.ArgumentParser(prog="python -m perennial.simulation.theory", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for CSV files and figures")
    parser.add_argument("--quick", action="store_true", help="short runs and fewer seeds: to see that it works")
    options = parser.parse_args(arguments)
    return console.run(lambda: _run(options), "theory", interrupted="the same command begins anew")


def _run(options: argparse.Namespace) -> int:
    began, busy = time.monotonic(), time.process_time()
    print(write(QUICK if options.quick else FULL, options.output))
    spent = f"{time.process_time() - busy:.0f} s of processor time in {time.monotonic() - began:.0f} s"
    console.say(f"wrote {options.output}: {spent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
