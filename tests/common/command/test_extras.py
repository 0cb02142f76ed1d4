"""Extras that are missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from perennial.common.command import extras
from perennial.common.command.errors import InputError

ROOT = Path(__file__).resolve().parents[3]


def test_an_extra_that_is_there_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "app", ("json", "email.message"))
    extras.need("app")


def test_what_is_missing_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "simulation", ("json", "no_such_module", "nor_this"))
    with pytest.raises(InputError) as error:
        extras.need("simulation")
    assert str(error.value) == (
        "no_such_module, nor_this must be installed first: pip install 'perennial-fl[simulation]'"
    )


def test_a_folder_of_that_name_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_such_module").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setitem(extras.MODULES, "app", ("no_such_module",))
    assert extras.missing("app") == ["no_such_module"]


def test_looking_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_module.py").write_text("raise AssertionError('loaded')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setitem(extras.MODULES, "app", ("trap_module",))
    extras.need("app")


def test_every_extra_stands_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.MODULES) <= set(project["optional-dependencies"])
    assert extras.install("app") == f"pip install '{project['name']}[app]'"
