"""What the report's page is built of: the document with its look, sections, tables and figures, as HTML."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #22262e; --faint: #667080; --line: #dfe3e8; --ground: #fff; --tint: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7ec; --faint: #98a1ae; --line: #343b45; --ground: #15181d; --tint: #1d2127; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 2.5rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.5rem 0 .6rem; }
p, figcaption { color: var(--faint); margin: 0 0 .8rem; max-width: 75ch; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .42rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 500; vertical-align: bottom; }
thead th { white-space: normal; }
tbody th { color: var(--ink); font-weight: 600; }
th:first-child, td:first-child, table.words th, table.words td { text-align: left; padding-left: .25rem; }
table.words tbody th, table.words td { vertical-align: top; }
table.words td { white-space: normal; overflow-wrap: anywhere; padding-right: 1.5rem; }
tbody tr:hover { background: var(--tint); }
.key { display: inline-block; width: 1.1em; height: .25em; border-radius: 2px; margin-right: .55em;
  vertical-align: .25em; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 0 2rem; margin: 0;
  font-size: .9rem; }
dl div { display: flex; justify-content: space-between; gap: 1rem; padding: .25rem;
  border-bottom: 1px solid var(--line); }
dt { color: var(--faint); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; }
figure { margin: 2rem 0; } figure img { display: block; width: 100%; height: auto; background: #fff; padding: .5rem;
  border: 1px solid var(--line); border-radius: 6px; margin-bottom: .5rem; }
@media print { body { max-width: none; padding: 0; } figure { break-inside: avoid; } }
"""


def document(title: str, body: Sequence[str]) -> str:
    """A whole page of ready HTML parts, one below the other."""
    # The policy makes "self-contained" a thing that the browser enforces, whatever a run's name contains.
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>\n{content}</section>" if content else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: bool = False) -> str:
    """A table of ready HTML cells, the first of each row its heading."""
    heading = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = (
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    kind = ' class="words"' if words else ""
    body = f"<thead><tr>{heading}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>"
    return f'<div class="scroll"><table{kind}>\n{body}</table></div>\n'


def figure(name: str, image: bytes, caption: str) -> str:
    """A PNG inside the page, with its caption below."""
    source = base64.b64encode(image).decode("ascii")
    return (
        f'<figure id="{name}"><img alt="{escape(caption)}" src="data:image/png;base64,{source}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
