"""How a request to the server fails: it is refused, or nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from flwr.supercore.error import FlowerError


class Refused(Exception):
    """The server answered, and said no. ``gone``: it does not know this node (any more), so activate again."""

    def __init__(self, message: str, *, gone: bool) -> None:
        super().__init__(message)
        self.gone = gone


class Unreachable(Exception):
    """No answer; try again."""


@contextmanager
def failures() -> Iterator[None]:
    """Turn httpx's errors into ``Refused`` and ``Unreachable``."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, flower = error.response.status_code, FlowerError.from_json(error.response.text)
        if status >= 500:  # Also of a server that is being stopped.
            raise Unreachable(f"the server answered {status}") from error
        text = f"{flower.message} [{flower.code}]" if flower else f"HTTP {status}"
        raise Refused(text, gone=status == 401) from error
    except httpx.HTTPError as error:
        raise Unreachable(str(error) or type(error).__name__) from error
