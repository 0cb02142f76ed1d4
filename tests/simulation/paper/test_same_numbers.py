"""One run has one number, whoever is asked: the report, or the page of results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from perennial.common.command.config import RunConfig
from perennial.server.report import html, reading, table
from perennial.simulation.paper import cells, mix, page, series, summary, tables
from perennial.simulation.paper.__main__ import main
from perennial.simulation.paper.plan import PARTS
from tests.server.report.records import record

DOCS = Path(__file__).parents[3] / "docs"
# Three cycles of two blocks of two rounds.
MEANS = (10, 20, 30, 40, 50, 62, 60, 58, 30, 20, 66, 64)


def write_run(folder: Path, rounds: int, every: int) -> Path:
    """Write the first rounds of a run, evaluated every so many."""
    config = RunConfig(strategy="mm-psgd", blocks=2, cycles=3, rounds_per_block=2)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
    costs = {"bytes_down": 400_000_000, "bytes_up": 600_000_000, "seconds": 3.0}
    lines = [
        record(at, accuracy=[mean / 100, mean / 100] if at % every == 0 else ..., **costs)
        for at, mean in enumerate(MEANS[:rounds], 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def in_report(folder: Path) -> dict[str, str]:
    """The summary of the report, by heading."""
    return {column.heading: column.cells[0] for column in table.summary(reading.read_all(folder))}


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("rounds", [12, 11, 10, 9, 8, 7, 6, 4, 3])
def test_report_and_results_page_tell_the_same_of_a_run_wherever_it_was_broken_off(
    tmp_path: Path, rounds: int, every: int
) -> None:
    report = in_report(write_run(tmp_path / "mm-psgd", rounds, every))
    (run,) = reading.read_all(tmp_path / "mm-psgd")
    series.write(tmp_path, "figure2", [series.from_result(run, "")])
    lines = tables.figure2(series.read(tmp_path, "figure2")).splitlines()
    (line,) = (line for line in lines if line.startswith("| MM-PSGD | "))
    best, mean, least_and_most = (cell.strip() for cell in line.split("|")[3:6])
    assert best == report["best %"]
    assert mean == report["last cycle %"]
    assert least_and_most == report["min..max"].replace("..", " to ")


def test_the_last_cycle_of_a_run_that_was_broken_off_in_its_third_is_the_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean over rounds 5 to 8, not over rounds 9 and 10."""
    report = in_report(write_run(tmp_path / "figure2" / "mm-psgd", 10, every=1).parent)
    assert (report["last cycle %"], report["min..max"], report["final %"]) == ("57.5", "50.0..62.0", "20.0")
    assert main(["collect", str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    assert "| MM-PSGD | best 65 | 62.0 | 57.5 | 50.0 to 62.0 |" in capsys.readouterr().out


def test_report_and_results_page_tell_the_same_cost_of_an_accuracy(tmp_path: Path) -> None:
    (run,) = reading.read_all(write_run(tmp_path / "mm-psgd", 10, every=2))
    report = " ".join(re.sub(r"<[^>]+>", " ", html.page([run], "one run")).split())
    assert "rounds to 60.0 % GB to 60.0 % seconds to 60.0 % mm-psgd 6 6.0 18.0 " in report
    assert cells.cost([series.from_result(run, "")], 0.6) == "6 rounds, 6.00 GB, 18 s"


def test_what_stands_on_the_pages_of_results_is_what_the_files_beside_them_say() -> None:
    found = {part.name: series.read(DOCS / "results", part.name) for part in PARTS}
    whole = summary.completed(found)
    parts = page.parts(whole, mix.read(DOCS / "results")) | page.states(found)
    for address in (DOCS / "results.md", *(DOCS / "results").glob("*.md")):
        # The figures stand above the tables, and are not drawn here.
        without_figures = re.sub(r"!\[[\w-]+\]\([\w/-]+\.png\)\n\n(?=\|)", "", address.read_text())
        assert page.filled(without_figures, parts) == without_figures
