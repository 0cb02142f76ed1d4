"""Tables and page: numbers where they belong, and only there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.simulation.paper import charts, page, tables
from perennial.simulation.paper.__main__ import main
from perennial.simulation.paper.mix import Told
from perennial.simulation.paper.pipeline import found_in
from perennial.simulation.paper.plan import PARTS
from perennial.simulation.paper.series import Series
from tests.simulation.paper.conftest import A_SERIES


def found(**series: list[Series]) -> tables.Found:
    return {part.name: series.get(part.name, []) for part in PARTS}


@pytest.fixture
def figure2(a_series: A_SERIES) -> list[Series]:
    means = {"fedavg": 30, "fedavg-shuffled": 40, "mm-psgd": 50, "mc-psgd": 50}
    return [
        a_series(name, (mean, mean + 2) * 4, seed=seed, strategy="fedavg" if "fedavg" in name else name,
                 shuffled="shuffled" in name)
        for name, mean in means.items() for seed in (0, 1)
    ]  # fmt: skip


def test_the_headline_tells_whether_the_papers_order_holds(figure2: list[Series], a_series: A_SERIES) -> None:
    assert page.headline(found(figure2=figure2)) == (
        "**The paper's order holds: over the last cycle MM-PSGD has 51.0 %, MC-PSGD 51.0 %, shuffled FedAvg 41.0 %, "
        "cyclic FedAvg 31.0 % (2 seeds); a predictor for each block is 20.0 points above cyclic FedAvg.**"
    )
    other = [one for one in figure2 if one.run != "fedavg-shuffled"]
    shuffled = a_series("fedavg-shuffled", (60,) * 8, shuffled=True)
    assert page.finding([*other, shuffled]).startswith("The paper's order does not hold: ")
    assert page.finding(other) == "Figure 2 still lacks fedavg-shuffled."
    both = page.headline({**found(figure2=figure2), "figure2-nine-labels": other})
    assert both.endswith("with blocks that lack one of the 10 labels: figure 2 still lacks fedavg-shuffled.")


def test_runs_that_are_not_at_their_end_are_compared_at_a_common_round(
    figure2: list[Series], a_series: A_SERIES
) -> None:
    other = [one for one in figure2 if one.run != "fedavg-shuffled"]
    partial = a_series("fedavg-shuffled", (90, 90, 35, 35), shuffled=True)
    assert "order does not hold (partial so far, at round 4): " in page.finding([*other, partial])


def test_the_table_of_figure_2_has_the_paper_beside_ours(figure2: list[Series]) -> None:
    lines = tables.figure2(figure2).splitlines()
    assert (
        lines[2]
        == "| FedAvg, cyclic | does not converge, 56 to 59 | 32.0 (32.0 to 32.0) | 31.0 (31.0 to 31.0) | 30.0 to 32.0 |"
    )
    assert len(lines) == 7


def test_the_calibration_has_the_paper_below_each_number_of_blocks(a_series: A_SERIES) -> None:
    series = [replace(a_series(name, strategy=name), setting="9") for name in ("fedavg", "mm-psgd")]
    lines = tables.calibration(series, "labels per block").splitlines()
    assert lines[2:] == [
        "| 2 | 9 | 55.0 (50.0 to 60.0) | 60.0 | 60.0 | 6 |",
        "| 2 | **paper** | – | 61 | best 63 | – |",
    ]


def test_a_neighbour_has_a_line_for_each_learning_rate_of_the_server(a_series: A_SERIES) -> None:
    names = ["mm-psgd-labels-per-block-2", "fedadam-labels-per-block-2", "fedadam-labels-per-block-2-server-lr-0.03"]
    series = [replace(a_series(name, strategy=name.partition("-labels")[0]), setting="2") for name in names]
    lines = tables.neighbours(found(neighbours=series)).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["MM-PSGD", "FedAdam", "FedAdam, server-lr 0.03"]


def test_table_1_says_when_60_percent_was_first_measured(a_series: A_SERIES) -> None:
    series = [a_series("a", local_iterations=5), a_series("b", (10,) * 8, local_iterations=10)]
    lines = tables.table1(found(figure3=series)).splitlines()
    assert lines[2] == "| MM-PSGD, paper | 3,210 | 2,010 | 1,610 | 1,610 |"
    assert lines[3] == "| MM-PSGD, ours | 6 | not in 8 | – | – |"
    assert lines[4] == "| MM-PSGD, our best accuracy | 60.0 | 10.0 | – | – |"


def test_forgetting_is_told_of_what_all_seeds_have(a_series: A_SERIES) -> None:
    long, short = (a_series("fedavg", (10, 20, 30, 40, 50, 60, 50, 60)[:rounds], seed=rounds) for rounds in (8, 7))
    lines = tables.forgetting(found(figure2=[replace(long, planned=99), replace(short, planned=99)])).splitlines()
    assert lines[0] == "| rounds since the block was trained | 1 |"


def test_the_control_has_seeds_side_by_side() -> None:
    told = [Told("fedavg", 0, 50.0, 54.0), Told("fedavg", 1, 52.0, 56.0), Told("mm-psgd", 0, 60.0, 61.0)]
    assert tables.mix(told).splitlines()[2:] == [
        "| FedAvg, cyclic | 51.0 (50.0 to 52.0) | 55.0 (54.0 to 56.0) |",
        "| FedAvg, shuffled | – | – |",
        "| MM-PSGD | 60.0 | 61.0 |",
    ]


def test_votes_are_told_by_cycle_and_by_how_long_the_block_is_there(a_series: A_SERIES) -> None:
    votes = ("separate", "mixed") * 2 + ("mixed",) * 4
    text = tables.votes(found(figure2=[a_series("mc-psgd", strategy="mc-psgd", chosen=votes)]))
    assert text.splitlines() == [
        "| cycle | 0 | 1 |",
        "| --- | --- | --- |",
        "| rounds won by the separate chain, % | 50.0 | 0.0 |",
        "",
        "| rounds into a block | 1 to 1 | 2 to 2 |",
        "| --- | --- | --- |",
        "| rounds won by the separate chain, % | 50.0 | 0.0 |",
    ]


def test_the_overhead_is_mcs_bytes_over_mms_to_the_same_accuracy(a_series: A_SERIES) -> None:
    mm, mc = a_series("mm-psgd"), a_series("mc-psgd", (10, 20, 30, 40, 40, 50, 55, 60), strategy="mc-psgd")
    lines = tables.communication(found(figure2=[mm, mc])).splitlines()
    assert lines[4] == "| MM-PSGD | 5 rounds, 0.01 GB, 2 s | 6 rounds, 0.01 GB, 3 s | 6 rounds, 0.01 GB, 3 s | – |"
    assert lines[-1] == "| **bytes of MC over MM; paper: 2·M^¼ = 2.38** | 1.20 | 1.17 | 1.33 | – |"


def test_only_what_stands_between_markers_changes() -> None:
    text = "old <!-- headline -->\n\nprose\n<!-- begin a -->\nold\n<!-- end a -->\nmore\n"
    once = page.filled(text, {"headline": "new", "a": r"| \d |", "b": "unused"})
    assert once == "new <!-- headline -->\n\nprose\n<!-- begin a -->\n| \\d |\n<!-- end a -->\nmore\n"
    assert page.filled(once, {"headline": "new", "a": r"| \d |"}) == once


def test_an_experiment_says_what_it_rests_on(a_series: A_SERIES) -> None:
    assert page.state([]) == "*Not run yet.*"
    assert page.state([a_series()]) == "*1 run, seed 0, 0 minutes of training.*"
    assert "round 2 of 8" in page.state([a_series(), a_series("x", (10, 20))])


def test_every_part_is_written_and_drawn_also_without_data(figure2: list[Series]) -> None:
    assert "Not run yet." in page.parts(found(), [])["neighbours"]
    assert charts.draw(found()) == {}
    assert set(charts.draw(found(figure2=figure2))) == {
        "figure2", "ablations", "votes", "forgetting", "communication",
    }  # fmt: skip


def test_collect_takes_the_folders_of_all_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        folder = tmp_path / f"figure2-seed{seed}" / "mm-psgd"
        folder.mkdir(parents=True)
        config = RunConfig(strategy="mm-psgd", blocks=1, cycles=1, rounds_per_block=1, seed=seed)
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
        row = {"server-round": 1, "cycle": 0, "block": 0, "round-in-block": 0, "accuracy": [0.5 + seed / 10]}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "figure2-seed0.log").write_text("")
    assert [len(folders) for folders in found_in([tmp_path], PARTS).values()] == [2]
    (tmp_path / "out").mkdir()
    results, more = tmp_path / "page.md", tmp_path / "out" / "more.md"
    results.write_text("<!-- begin figure2 -->\n<!-- end figure2 -->\n")
    more.write_text("<!-- begin ablations -->\n<!-- end ablations -->\n<!-- begin figure2 -->\n<!-- end figure2 -->\n")
    main(["collect", str(tmp_path), "--output", str(tmp_path / "out"), "--page", str(results), str(more)])
    assert "| MM-PSGD | best 65 | 55.0 (50.0 to 60.0) |" in results.read_text()
    assert "![figure2](out/figure2.png)" in results.read_text()
    assert "| MM-PSGD | 55.0 (50.0 to 60.0) |" in more.read_text()
    assert "![figure2](figure2.png)" in more.read_text()
    assert (tmp_path / "out" / "figure2.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="is no folder of runs"):
        found_in([tmp_path / "nowhere"], PARTS)


def test_every_part_has_its_place_on_one_page_of_results() -> None:
    docs = Path(__file__).parents[3] / "docs"
    first, *others = [path.read_text() for path in (docs / "results.md", *sorted((docs / "results").glob("*.md")))]
    text = "\n".join([first, *others])
    wanted = [name for name in page.parts(found(), []) | page.states(found()) if name != "headline"]
    assert first.splitlines()[0].endswith("<!-- headline -->")
    assert dict.fromkeys(wanted, (1, 1)) == {
        name: (text.count(f"<!-- begin {name} -->"), text.count(f"<!-- end {name} -->")) for name in wanted
    }
