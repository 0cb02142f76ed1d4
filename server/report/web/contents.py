"""The parts of the page by name, in reading order. The report and the live page are both made of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape

from perennial.server.report.columns import RunResult
from perennial.server.report.comparison import compare
from perennial.server.report.styles import styles
from perennial.server.report.web import chart, curves, findings, overview
from perennial.server.report.web.chart import Chart


def contents(runs: Sequence[RunResult], now: datetime | None = None) -> dict[str, str]:
    """Return what stands in each part, '' where these runs have nothing for it.

    now: what the clocks of runs that go on say; None: their last rounds' times.
    """
    comparison, look = compare(runs), styles(runs)
    alone = len(runs) == 1
    lead = f"<p>{findings.count(len(runs), 'run')}{findings.differing_in(comparison)}.</p>"
    return {
        "about": lead + findings.diverged(runs),
        "now": _section("Where it is", overview.now(runs, now)),
        "summary": _section("Summary", findings.note(runs) + findings.summary(runs)),
        "scores": _section(
            findings.named("Accuracy over time", runs),
            _drawn(curves.scores(runs, look)) + _grid(curves.panels(runs, look)),
        ),
        "chains": _section("Which chain won", overview.who_won(runs) + _drawn(curves.chosen(runs, look))),
        "losses": _section("Training", _drawn(curves.losses(runs, look))),
        "fleet": _section("The fleet", _drawn(curves.fleet(overview.leading(runs))) + findings.rejected(runs)),
        "costs": _section(
            findings.named("Cost of an accuracy", runs), findings.costs(runs) + _drawn(curves.costs(runs, look))
        ),
        "versions": _section("Published versions", overview.published(runs)),
        "differs": _section("What differs", findings.differing(runs, comparison)),
        "settings": _section("Configuration" if alone else "What is shared", findings.settings(comparison)),
    }


def waiting(title: str) -> dict[str, str]:
    """Return the parts of a page whose runs have not begun."""
    return dict.fromkeys(PARTS, "") | {"about": f"<p>{escape(title)} has not finished a round yet.</p>"}


PARTS = ("about", "now", "summary", "scores", "chains", "losses", "fleet", "costs", "versions", "differs", "settings")


def _section(heading: str, content: str) -> str:
    return f"<h2>{escape(heading)}</h2>\n{content}" if content else ""


def _drawn(charts: Sequence[Chart]) -> str:
    return "".join(chart.draw(one) for one in charts)


def _grid(charts: Sequence[Chart]) -> str:
    return f'<div class="panels">{_drawn(charts)}</div>' if charts else ""
