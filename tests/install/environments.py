"""Environments as users have them: the wheel, and beside it what it asks for or all that is installed here.

Nothing is downloaded: libraries are lent by the environment that runs the tests, without its editable install.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.processes import environment

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("client", "common", "server", "simulation")
HERE = Path(sysconfig.get_path("purelib"))


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has the wheel."""

    folder: Path

    def command(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def run(self, name: str, *arguments: str | Path, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
        """Run one of its commands to the end, with ``extra`` variables, and return what it said."""
        line = [self.command(name), *map(str, arguments)]
        env = {**variables(), **extra}
        return subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=200)


def variables() -> dict[str, str]:
    """Return the variables of a user's shell: nothing in it leads to the checkout."""
    return {key: value for key, value in environment().items() if key != "PYTHONPATH"}


def build_wheel(folder: Path) -> Path:
    """Return the wheel of this tree, built from a copy: setuptools takes what an earlier build left behind for new."""
    for name in ("perennial", *ROOMS):
        shutil.copytree(ROOT / name, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "tree", cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Environment:
    """Return an environment that has the wheel and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    _pip("--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return Environment(folder)


def lend_everything(to: Environment) -> Environment:
    """Lend all libraries that are installed here; of a folder on the path, Python reads no .pth, so no editable one."""
    return _lend(to, HERE)


def lend_dependencies(to: Environment, *more: str) -> Environment:
    """Lend the libraries that the wheel asks for without an extra, ``more``, and those that they ask for."""
    shelf = to.folder / "lent"
    shelf.mkdir()
    for name in sorted(_dependencies([*_requires(to), *more])):
        for entry in {Path(str(file)).parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}:
            if not (shelf / entry).exists():
                (shelf / entry).symlink_to(HERE / entry)
    return _lend(to, shelf)


def _lend(to: Environment, shelf: Path) -> Environment:
    (_packages(to) / "lent.pth").write_text(f"{shelf}\n")
    return to


def _packages(of: Environment) -> Path:
    (found,) = of.folder.glob("lib/python*/site-packages")
    return found


def _requires(of: Environment) -> list[str]:
    (metadata,) = _packages(of).glob("perennial_fl-*.dist-info")
    return Distribution.at(metadata).requires or []


def _dependencies(requirements: Iterable[str]) -> set[str]:
    """Return the names of all distributions that requirements lead to, none of them by an extra of the wheel's."""
    found: set[str] = set()
    waiting = {(text, "") for text in requirements}
    seen = set(waiting)
    while waiting:
        text, extra = waiting.pop()
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            found.add(wanted.name)
            next_ones = distribution(wanted.name).requires or ()
            new = {(one, asked) for one in next_ones for asked in ("", *wanted.extras)} - seen
            waiting, seen = waiting | new, seen | new
    return found


def _pip(*arguments: str | Path, cwd: Path) -> None:
    """Run pip in a folder that is not the checkout, whose own metadata it would take for an installed package."""
    line = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(line, cwd=cwd, env=variables(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
