"""The parts of the page: what they say is what metrics.jsonl says, on the screen and to a screen reader."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from perennial.server.report import reading
from perennial.server.report.palette import Style
from perennial.server.report.web import chart, contents, dial, overview, position
from perennial.server.report.web.chart import Chart, ChartLine
from tests.server.report.records import CONFIG, THREE, eight_rounds, record, rising
from tests.server.report.test_html import EVIL, Page

CLOCK = {"blocks": 2, "clock": "day: 08:00-20:00, night: 20:00-08:00", "timezone": "Europe/Berlin", "cycles": 3}


def a_run(config: dict[str, Any] | None = None, **last: Any) -> Any:
    records = eight_rounds()
    records[-1] |= {key.replace("_", "-"): value for key, value in last.items()}
    return reading.from_records("run", CONFIG | (config or {}), records)


def facts(html: str) -> dict[str, str]:
    return dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html))


def test_the_facts_are_those_of_the_last_lines() -> None:
    run = a_run(clients_asked=7, clients_answered=6, clients_rejected=1, nodes_online=3, quarantined=["12"])
    said = facts(overview.now([run], None))
    assert said["Round"] == "8 of 8"
    assert (said["Cycle"], said["Block"]) == ("2 of 2", "block 1")
    assert (said["Seconds a round"], said["Trained for"], said["Time left"]) == ("0.5", "4 s", "none: it is done")
    assert said["Mean accuracy"] == "60.0 %, at round 8"
    assert (said["Nodes online"], said["Asked in the last round"], said["Answered"]) == ("3", "7", "6")
    assert (said["Rejected"], said["Nodes in quarantine"]) == ("1", "12")
    assert (said["To the clients"], said["From the clients"], said["A round"]) == ("800 B", "400 B", "150 B")


def test_the_time_left_is_what_the_rounds_that_are_left_take_at_the_last_rounds_pace() -> None:
    run = reading.from_records("run", CONFIG | {"cycles": 100}, eight_rounds())
    assert position.left(run, None) == "about 3 min"
    assert position.pace(run) == 0.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99, "99 s"), (100, "2 min"), (5900, "98 min"), (6000, "1 h 40 min"), (200_000, "2 d 7 h")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert position.duration(seconds) == text


def test_the_dial_of_a_run_by_rounds_points_where_the_round_is() -> None:
    shown = position.dial_of(reading.from_records("run", CONFIG, eight_rounds()[:5]), None)
    assert [(arc.block, arc.first, arc.last) for arc in shown.arcs] == [(0, 0, 0.5), (1, 0.5, 1)]
    assert (shown.block, shown.hand) == (0, 0.25)
    assert shown.said == "Cycle 2, block 0, round 1 of 2 of the block."


def test_the_dial_of_a_clock_points_at_the_wall_time_of_its_zone() -> None:
    run = reading.from_records("run", CLOCK, [record(1, 2, 2)])
    shown = position.dial_of(run, datetime(2026, 7, 1, 16, 0, tzinfo=UTC))
    assert (shown.names, shown.block, shown.hand) == (("day", "night"), 0, 18 / 24)
    # The night goes over midnight, and is one arc.
    assert [(arc.block, 24 * arc.first, 24 * arc.last) for arc in shown.arcs] == [(0, 8, 20), (1, 20, 32)]
    assert position.left(run, datetime(2026, 7, 1, 16, 0, tzinfo=UTC)) == "2 h 00 min in this block, until 20:00"
    assert "The last round was in block day." in shown.said


def test_the_dial_of_a_week_shows_its_days() -> None:
    run = reading.from_records("run", {"blocks": 2, "clock": "week: Mon-Fri, end: Sat-Sun"}, [record(1, 2, 2)])
    shown = position.dial_of(run, datetime(2026, 11, 21, 12, 0, tzinfo=UTC))
    assert (shown.block, shown.hand, len(shown.marks)) == (1, 5.5 / 7, 7)


def test_a_simulated_clock_is_told_by_its_rounds() -> None:
    config = CLOCK | {"clock-start": "2026-03-27T12:00", "clock-step": 60, "timezone": "UTC"}
    run = reading.from_records("run", config, [record(1, 2, 2), record(2, 2, 2)])
    assert position.instant_of(run, datetime.now(UTC)) == datetime(2026, 3, 27, 13, 0, tzinfo=UTC)


def test_what_is_seen_on_the_dial_is_said_too() -> None:
    shown = dial.draw(position.dial_of(a_run(), None))
    assert 'role="img"' in shown
    assert 'aria-label="Cycle 2, block 1, round 2 of 2 of the block."' in shown
    assert shown.count("<li") == 2
    assert shown.count('aria-current="true"') == 1


def test_who_won_is_counted_by_block() -> None:
    page = Page(overview.who_won([a_run()]))
    assert page.texts["td"] == ["4", "1", "3", "25 %", "3", "2", "1", "67 %"]
    assert overview.who_won([rising("fedavg")]) == ""


def test_the_scores_of_all_evaluated_rounds_are_in_the_table_of_their_chart() -> None:
    page = Page(contents.contents([a_run()])["scores"])
    assert page.texts["summary"] == ["Numbers of this chart"]
    assert page.texts["th"][:4] == ["round", "block 0", "block 1", "mean over blocks"]
    assert page.texts["th"][4:] == ["8", "7", "5", "4", "2"]
    assert page.texts["td"][:6] == ["70.0 %", "50.0 %", "60.0 %", "80.0 %", "60.0 %", "70.0 %"]
    assert page.texts["b"] == ["70.0 %", "50.0 %", "60.0 %"]
    assert [text for text in page.texts["span"] if "cycle" in text] == ["cycle 1", "cycle 2"]


def test_every_part_has_its_place_whatever_the_runs_have() -> None:
    for runs in ([a_run()], [rising(name) for name in THREE], [reading.from_records("new", {}, [])]):
        assert tuple(contents.contents(runs)) == contents.PARTS
    assert tuple(contents.waiting("x")) == contents.PARTS


def test_all_ids_are_there_once() -> None:
    page = Page("".join(contents.contents([rising(name) for name in THREE]).values()))
    found = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(found) > 10
    assert len(found) == len(set(found))


def test_names_cannot_break_out_of_a_chart() -> None:
    bad = Chart(EVIL[:5], EVIL, EVIL, EVIL, [ChartLine(EVIL, np.arange(2), np.ones(2), Style("#000000"))])
    page = Page(chart.draw(Chart("x", bad.title, bad.across, bad.up, bad.curves)))
    assert {"script"}.isdisjoint(tag for tag, _ in page.tags)


def test_a_line_has_gaps_where_nothing_was_measured() -> None:
    y = np.array([1.0, 2.0, math.nan, 3.0, 4.0])
    drawn = chart.draw(Chart("x", "t", "round", "y", [ChartLine("a", np.arange(5), y, Style("#000000"))]))
    (path,) = re.findall('class="line"[^>]* d="([^"]*)"', drawn)
    assert path.count("M") == 2
    (dots,) = re.findall('class="dots"[^>]* d="([^"]*)"', drawn)
    assert dots.count("h0") == 4


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-1e-9, 1e-9], [-3.0, 1e12], [math.nan]])
def test_any_values_have_a_scale(values: list[float]) -> None:
    y = np.array(values)
    drawn = chart.draw(Chart("x", "t", "round", "y", [ChartLine("a", np.arange(len(y)), y, Style("#000000"))]))
    assert "nan" not in "".join(re.findall(' d="([^"]*)"', drawn))
    assert 'class="y"' in drawn


def test_the_page_of_a_long_run_stays_small() -> None:
    long = rising("mc-psgd", cycles=200, blocks=5, rounds=20)
    assert len(long.rounds) == 20_000
    assert sum(map(len, contents.contents([long]).values())) < 250_000
