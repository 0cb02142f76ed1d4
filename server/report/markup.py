"""What the page is built of: the document, tables, keys, bars and lists of facts, as HTML."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from perennial.server.report.look import STYLE
from perennial.server.report.palette import Style
from perennial.server.report.table import unit_of


def document(title: str, parts: Mapping[str, str], head: str = "", script: str = "") -> str:
    """A whole page of named parts. head: ready HTML above them. script: what may run, and nothing else."""
    allowed = ""
    if script:
        allowed = f"; script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        allowed += "; connect-src 'self'"
    body = "\n".join(
        f'<section id="{name}"{"" if content else " hidden"}>{content}</section>' for name, content in parts.items()
    )
    # The policy makes "self-contained" a thing that the browser enforces, whatever a run's name contains.
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'{allowed}\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>\n{head}</header>\n<main>\n{body}\n</main>\n"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], words: bool = False, *, ident: str = "", label: str = ""
) -> str:
    """A table of ready HTML cells, the first of each row its heading. label: what it is, for screen readers."""
    heading = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = (
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    kind = ' class="words"' if words else ""
    body = f"<thead><tr>{heading}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>"
    name = f' id="{ident}"' if ident else ""
    # Who has no mouse must be able to scroll it.
    region = f'class="scroll" tabindex="0" role="region" aria-label="{escape(label or "Table")}"'
    return f"<div {region}{name}><table{kind}>\n{body}</table></div>\n"


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, as texts."""
    return f"<dl>{''.join(f'<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>' for name, value in pairs)}</dl>"


def key(style: Style) -> str:
    """A short stroke of a line's colour."""
    dashed = "" if style.dash == "-" else " dashed"
    return f'<span class="key{dashed}" style="--c:{style.color}"></span>'


def bar(share: float) -> str:
    """A share of 1 as a bar; the number must stand beside it."""
    return f'<span class="bar" aria-hidden="true"><i style="width:{100 * share:.3g}%"></i></span>'


def size(count: float) -> str:
    """`1234567` -> `1.23 MB`."""
    unit, name = unit_of(count)
    return f"{count / unit:.3g} {name}"
