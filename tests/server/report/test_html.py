"""The report is one file that loads nothing and believes nobody's names."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from perennial.server.report import html, reading
from perennial.server.report.columns import RunResult
from perennial.server.report.web import findings
from tests.server.report.records import record

EVIL = '<script src="https://evil.example/x.js"></script>&"\''
VOID = {"meta", "link"}


def a_run(name: str, finals: list[float], config: dict[str, object] | None = None, **last: Any) -> RunResult:
    """One block of one round in each cycle; `last` are keys of the last round."""
    costs = {"bytes_up": 1_000_000, "bytes_down": 1_000_000, "seconds": 1.0}
    records = [
        record(at, 1, 1, accuracy=[accuracy], train_loss_mixed=1.0 / at, **costs, **(last if at == len(finals) else {}))
        for at, accuracy in enumerate(finals, 1)
    ]
    defaults = {"strategy": name, "blocks": 1, "rounds-per-block": 1, "seed": 0}
    return reading.from_records(name, defaults | (config or {}), records)


class Page(HTMLParser):
    """Checks that tags nest, and keeps tags with their attributes, the text of cells and headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data)


def written(tmp_path: Path, *runs: RunResult, title: str = "A title") -> Page:
    return Page(html.write(tmp_path, runs, title).read_text(encoding="utf-8"))


TWO = (a_run("fedavg", [0.2, 0.42, 0.31]), a_run("mm-psgd", [0.2, 0.5, 0.6234]))


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs(tmp_path: Path) -> None:
    page = written(tmp_path, *TWO)
    loaded = [value or "" for _, attrs in page.tags for key, value in attrs.items() if key in ("src", "href", "srcset")]
    assert loaded == ["data:,"]
    assert not {"script", "iframe", "object", "embed", "form"} & {tag for tag, _ in page.tags}
    assert not any(key.startswith("on") for _, attrs in page.tags for key in attrs)
    assert not any("url(" in text or "@import" in text for text in page.texts["style"])


def test_the_report_has_the_charts_that_are_files_beside_it(tmp_path: Path) -> None:
    page = written(tmp_path, *TWO)
    assert [attrs["id"] for tag, attrs in page.tags if tag == "figure"] == ["dial", "score", "score-0", "loss", "bytes"]
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "figures"}
    names = {"accuracy", "accuracy-per-block", "bytes", "train-loss"}
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == names


def test_the_summary_and_the_costs_are_exact(tmp_path: Path) -> None:
    page = written(tmp_path, *TWO)
    cells = page.texts["td"]
    # The best accuracies are emphasised, so they are not plain cells.
    assert cells[:10] == ["31.0", "42.0", "2", "31.0", "31.0–31.0", "31.0", "3", "3.0", "3.0", "3.0"]
    assert page.texts["strong"] == ["62.3", "62.3", "62.3", "62.3"]
    assert cells[10:16] == ["3", "62.3–62.3", "3", "3.0", "3.0", "3.0"]
    costs = cells[cells.index("4.0") - 1 :]
    assert costs[:12] == ["2", "4.0", "2.0", "-", "-", "-", "2", "4.0", "2.0", "3", "6.0", "3.0"]
    parts = ["Where it is", "Summary", "Accuracy over time", "Training", "Cost of an accuracy"]
    assert page.texts["h2"] == [*parts, "What differs", "What is shared"]


def test_settings_are_sorted_into_differing_and_shared(tmp_path: Path) -> None:
    page = written(tmp_path, *TWO)
    assert page.texts["td"][-2:] == ["fedavg", "mm-psgd"]
    assert page.texts["dt"][-3:] == ["blocks", "rounds-per-block", "seed"]
    assert page.texts["dd"][-3:] == ["1", "1", "0"]
    assert "2 runs, differing in strategy." in page.texts["p"]


def test_one_run_has_nothing_that_differs(tmp_path: Path) -> None:
    page = written(tmp_path, a_run("fedavg", [0.5], {"shuffled": True}))
    assert page.texts["h2"][-2:] == ["Cost of an accuracy", "Configuration"]
    assert page.texts["dd"][-5:] == ["fedavg", "1", "1", "0", "true"]


def test_every_text_is_escaped(tmp_path: Path) -> None:
    entry = {"node": EVIL, "clients": [1], "reason": EVIL}
    config: dict[str, object] = {EVIL: EVIL}
    bad = a_run(EVIL, [0.5], config, rejections=[entry], clients_rejected=1, quarantined=[EVIL])
    named = reading.from_records(EVIL + "2", bad.config, [], {"blocks": [EVIL]})
    for runs in ((bad,), (bad, named), (bad, TWO[0])):
        page = written(tmp_path, *runs, title=EVIL)
        assert "script" not in {tag for tag, _ in page.tags}
        assert page.texts["h1"] == page.texts["title"] == [EVIL]
        assert EVIL in page.texts["th"]
        held = [value for _, attrs in page.tags for key, value in attrs.items() if key != "aria-label"]
        assert all("evil" not in str(value) for value in held)


def test_a_clean_run_has_no_part_on_the_fleet(tmp_path: Path) -> None:
    assert "The fleet" not in written(tmp_path, *TWO).texts["h2"]


def test_a_run_that_diverged_is_said_so_first_of_all(tmp_path: Path) -> None:
    losses = [2.3, 2e22, 3e22]
    records = [record(at, 1, 1, train_loss_mixed=loss, train_loss_separate=0.5) for at, loss in enumerate(losses, 1)]
    lost = reading.from_records("mm-psgd", {"task": "classification"}, records)
    page = written(tmp_path, TWO[0], lost)
    said = "mm-psgd: the mixed chain has diverged since round 2: its loss is 2e+22; lower lr-mixed."
    assert page.texts["strong"][0] == f"{said} What was measured after that is no result."
    assert not any("diverged" in text for text in written(tmp_path, *TWO).texts.get("strong", []))


def test_rejections_are_gathered_by_run_node_and_reason(tmp_path: Path) -> None:
    entries = [{"node": "9", "clients": [4, 2], "reason": "NaN"}, {"node": "8", "clients": [1], "reason": "shape"}]
    page = written(
        tmp_path,
        a_run("fedavg", [0.5], rejections=[*entries, entries[0]], clients_rejected=5, quarantined=["9"]),
    )
    assert "The fleet" in page.texts["h2"]
    assert "In quarantine" in page.texts["h3"]
    cells = page.texts["td"]
    assert cells[cells.index("9") :][:12] == ["9", "2, 4", "2", "1", "NaN", "8", "1", "1", "1", "shape", "9", "1"]
    assert "Clients whose work was not taken, counted once an attempt: fedavg: 5 clients." in page.texts["p"]


def test_a_flood_of_rejections_does_not_flood_the_report(tmp_path: Path) -> None:
    entries = [{"node": str(i), "clients": list(range(50)), "reason": "x" * 10_000} for i in range(100)]
    page = written(tmp_path, a_run("fedavg", [0.5], rejections=entries))
    assert page.texts["td"].count("x" * findings.LONGEST_REASON) == findings.MOST_REJECTIONS
    assert "And 60 rarer ones, all in metrics.jsonl." in page.texts["p"]
    assert "0, 1, 2, 3, 4, 5, 6, 7 and 42 more" in page.texts["td"]


def test_a_run_without_a_round_has_a_report_that_says_so(tmp_path: Path) -> None:
    page = written(tmp_path, reading.from_records("new", {"seed": 1}, []))
    assert "No round has been evaluated yet." in page.texts["p"]
    assert list((tmp_path / "figures").iterdir()) == []


def test_a_second_report_leaves_no_figure_of_the_first_and_repeats(tmp_path: Path) -> None:
    first = html.write(tmp_path, TWO, "t").read_bytes()
    html.write(tmp_path, [reading.from_records("new", {}, [])], "t")
    assert list((tmp_path / "figures").iterdir()) == []
    assert html.write(tmp_path, TWO, "t").read_bytes() == first


def test_a_report_of_no_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        html.write(tmp_path, [], "t")


@pytest.mark.parametrize(
    ("bests", "expected"), [([0.6], [0.6]), ([0.42, 0.6234, 0.5], [0.4, 0.6]), ([0.61, 0.63], [0.6]), ([0.03], [])]
)
def test_targets_are_multiples_of_five_percent_that_some_run_reached(bests: list[float], expected: list[float]) -> None:
    assert findings.targets([a_run(str(best), [best]) for best in bests]) == expected
