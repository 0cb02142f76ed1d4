"""Who may import whom: the maths knows neither Flower nor torch, and the two sides know only what they share."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "server", "client", "simulation")


def imported_packages(source: str) -> set[str]:
    """Return the first parts of all names that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
    return {name.partition(".")[0] for name in names}


def importers(package: str, of: str) -> list[str]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    return [str(path.relative_to(ROOT)) for path in files if of in imported_packages(path.read_text())]


@pytest.mark.parametrize("module", ["server.psgd", "common.schedule", "common.partition"])
def test_the_maths_loads_neither_flwr_nor_torch(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "numpy" in loaded or module == "common.schedule"
    assert loaded.isdisjoint({"flwr", "torch", "ray"})


@pytest.mark.parametrize(
    ("package", "other"),
    [
        ("server", "client"),
        ("client", "server"),
        ("server", "simulation"),
        ("client", "simulation"),
        ("common", "server"),
        ("common", "client"),
        ("common", "simulation"),
    ],
)
def test_no_file_of_one_package_imports_the_other(package: str, other: str) -> None:
    assert importers(package, other) == []


@pytest.mark.parametrize(
    "source", ["import client.app", "from client import app", "def f():\n    from client.app import app",
               "import importlib\nimportlib.import_module('client.app')"],
)  # fmt: skip
def test_the_check_sees_every_way_to_import(source: str) -> None:
    assert "client" in imported_packages(source)


def test_no_package_imports_the_tests() -> None:
    assert [path for package in PACKAGES for path in importers(package, "tests")] == []


def test_the_reference_shares_no_code_with_the_packages() -> None:
    imported = imported_packages((ROOT / "tests" / "reference.py").read_text())
    assert imported == {"__future__", "collections", "dataclasses", "numpy"}
