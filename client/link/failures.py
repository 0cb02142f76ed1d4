"""What can go wrong between a node and its server."""

from __future__ import annotations


class Refused(Exception):
    """The server answered, and said no. ``gone``: it does not know this node (any more), so activate again."""

    def __init__(self, message: str, *, gone: bool) -> None:
        super().__init__(message)
        self.gone = gone


class OtherVersion(Refused):
    """The server speaks another version of the link; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, gone=False)


class Unreachable(Exception):
    """No answer, or one that says later; try again, after ``retry`` seconds at the least."""

    def __init__(self, message: str, *, retry: float = 0.0) -> None:
        super().__init__(message)
        self.retry = retry
