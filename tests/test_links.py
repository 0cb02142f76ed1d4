"""Every link of a page leads somewhere: to a file that is there, and to a heading that this file has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
]
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A link may go on in the next line.
_LINK = re.compile(r"\]\(\s*([^()\s]+)\s*\)")


def links(text: str) -> list[str]:
    """Return where the links of a page lead, but for those to other hosts."""
    return [link for link in _LINK.findall(_FENCE.sub("", text)) if not re.match(r"[a-z]+:", link)]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_every_anchor_resolves(page: Path) -> None:
    wrong = []
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            wrong.append(link)
    assert wrong == []


def test_the_check_sees_what_it_looks_for() -> None:
    text = "# What it costs, in `ms`\n[here](#what-it-costs-in-ms) [there](docs/a.md#b) [out](https://x.org)\n```\n[](no)\n```\n"
    assert links(text) == ["#what-it-costs-in-ms", "docs/a.md#b"]
    assert anchors(text) == {"what-it-costs-in-ms"}
    assert len(PAGES) > 25
    assert sum(len(links(page.read_text())) for page in PAGES) > 100
