"""docs/robustness.md promises what a test shows: each row of its table names one that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMISES = (ROOT / "docs" / "robustness.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]


def test_every_promise_names_a_test_that_exists() -> None:
    rows = [line for line in PROMISES.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        found = re.fullmatch(r"\|.+\|.+\| `(tests/\S+\.py)::(test_\w+)` \|", row)
        assert found, f"no test is named in: {row}"
        module = ast.parse((ROOT / found[1]).read_text())
        assert found[2] in {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}, found[0]
