"""The wheel holds the package, all of it, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path
from zipfile import ZipFile

from tests.install.environments import ROOMS, ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def files(folder: Path) -> set[Path]:
    """Return the files below a folder, relative to it, without what Python leaves there."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path for path in found if "__pycache__" not in path.parts}


def test_pyproject_lists_every_package_of_the_tree() -> None:
    folders = {room / path.parent for room in map(Path, ROOMS) for path in files(ROOT / room) if path.suffix == ".py"}
    names = {"perennial." + ".".join(folder.parts) for folder in folders}
    assert sorted(SETTINGS["tool"]["setuptools"]["packages"]) == sorted({"perennial"} | names)


def test_every_folder_with_modules_is_a_package() -> None:
    for room in ROOMS:
        for path in files(ROOT / room):
            assert path.suffix != ".py" or (ROOT / room / path).with_name("__init__.py").is_file(), path


def test_the_wheel_holds_what_the_tree_holds_and_its_metadata(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {Path(name) for name in archive.namelist()}
    metadata = {name for name in names if name.parts[0] == f"perennial_fl-{SETTINGS['project']['version']}.dist-info"}
    tree = {Path("perennial") / path for path in files(ROOT / "perennial")}
    tree |= {Path("perennial") / room / path for room in ROOMS for path in files(ROOT / room)}
    # Sources of the native engine, the digits, the experiments and py.typed among them.
    assert names - metadata == tree
    assert len(metadata) >= 4


def test_the_check_sees_files_that_are_no_modules() -> None:
    assert Path("data/digits.json") in files(ROOT / "common")
    assert Path("engines/cpp/native.cpp") in files(ROOT / "client")
    assert Path("experiments/demo.yaml") in files(ROOT / "simulation")
    assert Path("py.typed") in files(ROOT / "perennial")
