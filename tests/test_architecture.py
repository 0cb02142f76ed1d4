"""Who may import whom, and who is called what: docs/architecture.md in the form of tests."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("common", "server", "client", "simulation")
PURE = (
    "perennial.server.psgd",
    "perennial.server.exact",
    "perennial.common.cycle.schedule",
    "perennial.common.cycle.clock",
    "perennial.common.data.partition",
)
# What Flower calls public; everything else of it may change in a patch release.
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation")
LINK_ROOMS = ("server/link/", "client/link/")
# What the rooms may import, beside themselves; docs/architecture.md has the same table, with reasons.
MAY_IMPORT = {
    "common.command": ("common.cycle",),
    "common.cycle": ("common.command",),
    "common.wire": ("common.command",),
    "common.data": ("common",),
    "common.task": ("common",),
    "client.engines": ("common",),
    "client.link": ("common.command", "common.wire"),
    "server.cohort": ("common",),
    "server.strategies": ("common", "server.psgd", "server.exact", "server.cohort", "server.run"),
    "server.run": ("common", "server.psgd", "server.cohort", "server.strategies", "server.predict"),
    "server.report": ("common", "server.run.metrics", "server.run.tree", "server.predict.versions"),
    "server.predict": ("common", "server.run", "server.link"),
    "server.link": ("common", "server.cohort", "server.run"),
}
# Each side has its app, its command line and its end of the link: one word for one thing, seen from several sides.
SHARED_NAMES = {"app", "cli", "link", "__main__"}


def imported(source: str) -> set[str]:
    """Return the names of all modules that a file imports, or imports from, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module or "")
            # `from perennial import client` imports a room, and `from flwr import common` a private module.
            if node.module == "flwr" or inside(node.module or "", "perennial"):
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
    code = f"import sys\n{statement}\nprint()\nprint(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True)
    # The last line: a statement may have printed others.
    return set(found.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("module", PURE)
def test_the_maths_loads_neither_flwr_nor_torch(module: str) -> None:
    loaded = {name.partition(".")[0] for name in loaded_by(f"import {module}")}
    assert loaded.isdisjoint({"flwr", "torch", "ray"})


@pytest.mark.parametrize(
    "statement",
    [
        "import perennial",
        "import perennial; perennial.MMPSGD; perennial.MCPSGD; perennial.both_chains",
        "import perennial.server.strategies.own",
        *(
            f"from perennial.{side}.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
            for side in ("client", "server", "server.predict", "simulation")
        ),
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


def test_every_room_has_its_line_in_the_plan() -> None:
    rooms = {path.parent.relative_to(ROOT).parts for path in files("common", "client", "server")}
    assert set(MAY_IMPORT) == {".".join(parts) for parts in rooms if len(parts) == 2}


def test_the_page_on_the_architecture_has_every_room_and_the_same_plan() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("## The rooms")[2].split("```")[1]
    assert [room for room in MAY_IMPORT if f"  {room.partition('.')[2]}/ " not in tree] == []
    plan = {}
    for line in page.partition("| room | may import | why |")[2].partition("\n\n")[0].splitlines()[2:]:
        rooms, allowed = (re.findall("`([a-z/]+)(?:[.]py)?`", cell) for cell in line.split("|")[1:3])
        plan |= {room.replace("/", "."): tuple(name.replace("/", ".") for name in allowed) for room in rooms}
    assert plan == MAY_IMPORT


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_what_the_plan_allows(room: str) -> None:
    allowed = [f"perennial.{name}" for name in (room, *MAY_IMPORT[room])]
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(room.replace(".", "/"))
        for name in imported(path.read_text())
        # `from perennial.server import psgd` names the package too, which says nothing yet.
        if inside(name, "perennial") and not any(inside(name, one) or inside(one, name) for one in allowed)
    }
    assert wrong == set()


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
    # From a folder that is not the repo's root, and not led to it either: Python would find the root's own folders.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    code = f"import importlib.util as u; import perennial; raise SystemExit(u.find_spec({package!r}) is not None)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", env=env, check=True)


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


def twice(places: Iterable[tuple[str, str]]) -> list[str]:
    """Return the (name, place) pairs whose name another pair has too, as lines."""
    pairs = sorted(places)
    names = [name for name, _ in pairs]
    return [f"{name}: {place}" for name, place in pairs if names.count(name) > 1]


def public_classes(path: Path) -> list[str]:
    nodes = ast.parse(path.read_text()).body
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def test_no_two_modules_or_rooms_have_the_same_name() -> None:
    # A room is named by its folder, where its __init__.py lies.
    names = [(path.parent.name if path.stem == "__init__" else path.stem, str(path.relative_to(ROOT)))
             for path in files(*PACKAGES, "perennial")]  # fmt: skip
    assert twice(pair for pair in names if pair[0] not in SHARED_NAMES) == []
    # The exceptions are needed.
    assert {line.partition(":")[0] for line in twice(names)} == SHARED_NAMES


def test_no_two_public_classes_have_the_same_name() -> None:
    names = [(name, str(path.relative_to(ROOT)))
             for path in files(*PACKAGES, "perennial") for name in public_classes(path)]  # fmt: skip
    assert len(names) > 50
    assert twice(names) == []


def test_no_class_of_flower_s_is_imported_by_the_name_of_one_of_ours() -> None:
    ours = {name for path in files(*PACKAGES) for name in public_classes(path)}
    taken = {
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name}"
        for path in files(*PACKAGES, "perennial")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and inside(node.module or "", "flwr")
        for alias in node.names
        if (alias.asname or alias.name) in ours
    }
    assert taken == set()


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
