"""What the docs name is there: files by their paths, modules by their names."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "deploy" / "README.md"]
# Of the folders at the top; runs/ and state/ are the reader's own.
PATH = re.compile(
    r"(?<![\w./-])((?:benchmarks|client|common|deploy|docs|perennial|server|simulation|tests)/[\w./-]*\w)"
)
MODULE = re.compile(r"(?:\bpython -m |^from )([a-z_.]+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_every_module_of_a_page_is_there(page: Path) -> None:
    # What moved is named by where it was.
    text = page.read_text().partition("\n## What moved")[0]
    assert {path for path in PATH.findall(text) if not (ROOT / path).exists()} == set()
    assert {module for module in MODULE.findall(text) if find_spec(module) is None} == set()


def test_the_check_sees_what_it_looks_for() -> None:
    text = (ROOT / "README.md").read_text()
    assert "common/cycle/schedule.py" in PATH.findall(text)
    assert "perennial" in MODULE.findall(text)


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").rglob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_the_packages_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perennial"):
            home = import_module(str(node.module))
            gone = [one.name for one in node.names if not hasattr(home, one.name)]
            assert [name for name in gone if find_spec(f"{node.module}.{name}") is None] == []
