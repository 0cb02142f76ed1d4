"""One wheel and two environments for all tests in this folder: each takes seconds to make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.install import environments
from tests.install.environments import Environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    return environments.build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install perennial-fl`: no torch, no Ray, no matplotlib."""
    return environments.lend_dependencies(environments.install(wheel, tmp_path_factory.mktemp("light")))


@pytest.fixture(scope="session")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install 'perennial-fl[simulation]'`."""
    return environments.lend_everything(environments.install(wheel, tmp_path_factory.mktemp("full")))
