"""What a user imports: few names, light to import, each with an example that runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import perennial

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["perennial", "perennial.example", "perennial.testing", *sorted(set(perennial._HOMES.values()))]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_run(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_examples_of_the_document_run() -> None:
    found = doctest.testfile(str(ROOT / "docs" / "library.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > 10
    assert found.failed == 0


@pytest.mark.parametrize("name", perennial.__all__)
def test_every_name_is_there_and_has_an_example(name: str) -> None:
    value = getattr(perennial, name)
    assert value.__name__ == name
    assert ">>> " in (value.__doc__ or "")


def test_the_names_are_those_of_the_documents() -> None:
    assert set(perennial.__all__) == set(perennial._HOMES)
    assert set(perennial.__all__) <= set(dir(perennial))
    with pytest.raises(AttributeError, match="module 'perennial' has no attribute 'MXPSGD'"):
        perennial.MXPSGD  # noqa: B018


def test_importing_perennial_imports_nothing_heavy() -> None:
    code = "import sys, perennial; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert loaded.isdisjoint({"flwr", "numpy", "torch", "ray"})


def test_the_library_is_typed() -> None:
    assert (ROOT / "perennial" / "py.typed").is_file()
    assert {one.name for one in pkgutil.iter_modules([str(ROOT / "perennial")])} == {
        "client_app", "example", "partitioners", "server_app", "testing"
    }  # fmt: skip


def test_the_examples_of_the_readme_run() -> None:
    found = doctest.testfile(str(ROOT / "README.md"), module_relative=False, encoding="utf-8")
    assert found.attempted >= 5
    assert found.failed == 0
