"""A server of a run's folder in this process, on a port of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from perennial.server.predict.publishing import publish
from tests.server.predict.published import learnt
from tests.server.predict.serving.served import Served, serving


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder called ``rides``, with versions 1 and 2."""
    folder = tmp_path / "rides"
    folder.mkdir()
    for number in (1, 2):
        publish(folder, learnt(number))
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:
        yield lambda *arguments, **keys: stack.enter_context(serving(*arguments, **keys))


@pytest.fixture
def served(run: Path, serve: Callable[..., Served]) -> Served:
    """A server of ``run``, for tests that change the folder."""
    return serve(run)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of versions 1 and 2, for tests that only ask."""
    folder = tmp_path_factory.mktemp("shared")
    for number in (1, 2):
        publish(folder, learnt(number))
    with serving(folder) as served:
        yield served
