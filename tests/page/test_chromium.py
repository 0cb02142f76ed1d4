"""The live page of a real run in Chromium: what it shows is what metrics.jsonl says, for everybody who reads it.

Screenshots are left in build/page.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.page import said
from tests.page.conftest import RealRun

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

pytestmark = pytest.mark.slow
SHOTS = Path(__file__).resolve().parents[2] / "build" / "page"
CYCLES = 4
DESK, PHONE = {"width": 1200, "height": 1500}, {"width": 390, "height": 1500}


def facts(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('#now dl div')].map("
        "one => [one.querySelector('dt').textContent, one.querySelector('dd').textContent]))"
    )
    return found


def rows(page: Page, table: str) -> dict[str, list[str]]:
    """Return a table's rows by their headings."""
    found: dict[str, list[str]] = page.evaluate(
        "name => Object.fromEntries([...document.querySelectorAll(`#${name} tbody tr`)].map("
        "row => [row.querySelector('th').textContent, [...row.querySelectorAll('td')].map(one => one.textContent)]))",
        table,
    )
    return found


def texts(page: Page) -> list[list[str]]:
    """Return all parts with their text."""
    found: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('main section')].map(one => [one.id, one.textContent])"
    )
    return found


def round_of(page: Page) -> int:
    return int(facts(page)["Round"])


def wait_for_round(page: Page, least: int) -> None:
    page.wait_for_function(
        "least => { const one = document.querySelector('#now dd'); return one && parseInt(one.textContent) >= least }",
        arg=least,
        timeout=90_000,
    )


def check_all(page: Page, folder: Path) -> int:
    """Compare everything that the page shows with the lines up to the round that it shows; return that round."""
    number = round_of(page)
    lines = said.rows_of(folder, number)
    shown = facts(page)
    assert shown | said.facts(lines, CYCLES) == shown
    table = rows(page, "score-numbers-table")
    expected = said.scores(lines)
    assert table
    assert max(table, key=int) == max(expected, key=int)
    assert {at: expected[at] for at in table} == table
    assert rows(page, "won") == said.won(lines)
    dial = page.get_attribute("#dial svg", "aria-label") or ""
    assert f"The last round was in block {said.NAMES[lines[-1]['block']]}." in dial
    return number


def violations(page: Page) -> list[Any]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [(one["id"], one["nodes"][0]["html"][:200]) for one in found if one["impact"] in ("serious", "critical")]


def open_page(browser: Browser, address: str, **options: Any) -> Page:
    page = browser.new_context(**({"viewport": DESK} | options)).new_page()
    page.goto(address)
    return page


def test_the_page_shows_what_the_metrics_say_while_a_run_goes_on_and_at_its_end(browser: Browser, run: RealRun) -> None:
    requests: list[Request] = []
    page = open_page(browser, run.address)
    page.on("request", lambda request: requests.append(request))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    wait_for_round(page, 8)
    assert page.get_attribute("html", "data-state") == "live"

    # With the keyboard alone: what is shown is held, and compared; then the run is followed again.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "pause"
    page.keyboard.press("Enter")
    assert page.get_attribute("html", "data-state") == "paused"
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "paused.png")
    first = check_all(page, run.folder)
    page.keyboard.press("Enter")
    assert page.get_attribute("html", "data-state") == "live"
    page.focus("#score-numbers summary")
    page.keyboard.press("Enter")
    wait_for_round(page, first + 1)
    page.focus("#pause")
    page.keyboard.press("Enter")
    assert check_all(page, run.folder) > first
    # What a reader has opened stays open when new numbers come.
    assert page.evaluate("document.getElementById('score-numbers').open")
    assert violations(page) == []
    assert run.process.poll() is None, "the run ended before the page could be compared with it"
    page.keyboard.press("Enter")

    page.wait_for_function("() => document.documentElement.dataset.state === 'over'", timeout=90_000)
    assert page.inner_text("#connection") == "The run has ended"
    assert run.end()[0] == 0
    last = check_all(page, run.folder)
    assert last == len(said.rows_of(run.folder)) == CYCLES * 96
    # The same page lies in the run's folder, and loads nothing.
    shown = page.evaluate("[...document.querySelectorAll('main section')].map(one => [one.id, one.textContent])")
    report = open_page(browser, (run.folder / "report.html").as_uri())
    assert (
        report.evaluate("[...document.querySelectorAll('main section')].map(one => [one.id, one.textContent])") == shown
    )
    assert errors == []
    assert {request.url for request in requests} <= {run.address, run.address + "events"}
    assert {request.method for request in requests} <= {"GET"}
    check_looks(browser, run.folder / "report.html")


def check_looks(browser: Browser, report: Path) -> None:
    """Readable by day and night and on a phone, for axe-core and in width; a picture of each is left behind."""
    looks: dict[str, dict[str, Any]] = {
        "light": {"color_scheme": "light"},
        "dark": {"color_scheme": "dark"},
        "phone": {"viewport": PHONE, "device_scale_factor": 2, "is_mobile": True, "color_scheme": "light"},
        "phone-dark": {"viewport": PHONE, "device_scale_factor": 2, "is_mobile": True, "color_scheme": "dark"},
    }
    for name, options in looks.items():
        page = open_page(browser, report.as_uri(), **options)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.screenshot(path=SHOTS / f"{name}.png")
        page.screenshot(path=SHOTS / f"{name}-whole.png", full_page=True)
        page.context.close()
