"""Who may import whom: the maths knows neither Flower nor torch, and the two sides know only what they share."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "server", "client", "simulation")
PURE = (
    "perennial.server.psgd",
    "perennial.common.cycle.schedule",
    "perennial.common.cycle.clock",
    "perennial.common.data.partition",
)
# What Flower calls public; everything else of it may change in a patch release.
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
LINK_ROOMS = ("server/link/", "client/link/")


def imported(source: str) -> set[str]:
    """Return the names of all modules that a file imports, or imports from, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
            # `from perennial import client` imports a room, and `from flwr import common` a private module.
            if node.module in ("perennial", "flwr"):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
    return names


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


def importers(folder: str, of: str) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in files(folder)
            if any(inside(name, of) for name in imported(path.read_text()))]  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True)
    return set(found.stdout.split())


@pytest.mark.parametrize("module", PURE)
def test_the_maths_loads_neither_flwr_nor_torch(module: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(f"import {module}")}
    assert loaded.isdisjoint({"flwr", "torch", "ray"})


@pytest.mark.parametrize(
    "statement",
    [
        "import perennial",
        "import perennial.server.strategies.mc_psgd",
        "import perennial.server.strategies.own",
        "import perennial.client.cli as cli; cli.parser().format_help()",
        "import perennial.server.options as options; options.parser().format_help()",
    ],
)
def test_what_everybody_starts_with_loads_neither_torch_nor_ray_nor_matplotlib(statement: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(statement)}
    assert loaded.isdisjoint({"torch", "ray", "matplotlib"})


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
    assert importers(package, f"perennial.{other}") == []


def test_nothing_is_imported_by_another_name_than_perennial() -> None:
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(*PACKAGES, "perennial", "tests", "benchmarks")
        for name in imported(path.read_text())
        if any(inside(name, package) for package in PACKAGES)
    }
    assert wrong == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_an_installed_perennial_offers_no_other_top_level_package(package: str) -> None:
    # From a folder that is not the repo's root, whose own folders Python would find.
    code = f"import importlib.util as u; import perennial; raise SystemExit(u.find_spec({package!r}) is not None)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", check=True)


def test_flower_s_internals_are_imported_in_the_two_link_rooms_alone() -> None:
    private = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(*PACKAGES, "perennial")
        for name in imported(path.read_text())
        if inside(name, "flwr") and name not in PUBLIC
    }
    assert {line for line in private if not line.startswith(LINK_ROOMS)} == set()
    # The check sees what it looks for.
    assert any("flwr.proto" in line for line in private)


@pytest.mark.parametrize(
    "source", ["import perennial.client.app", "from perennial import client", "from perennial.client import app",
               "def f():\n    from perennial.client.app import app",
               "import importlib\nimportlib.import_module('perennial.client.app')"],
)  # fmt: skip
def test_the_check_sees_every_way_to_import(source: str) -> None:
    assert any(inside(name, "perennial.client") for name in imported(source))


def test_no_package_imports_the_tests() -> None:
    assert [path for package in PACKAGES for path in importers(package, "tests")] == []


@pytest.mark.parametrize("reference", ["reference.py", "library_reference.py"])
def test_a_reference_shares_no_code_with_the_packages(reference: str) -> None:
    names = {name.partition(".")[0] for name in imported((ROOT / "tests" / reference).read_text())}
    assert names <= {"__future__", "collections", "dataclasses", "numpy", "typing"}
    assert "numpy" in names
