"""The two ways a command ends badly; anything else that is raised is a bug."""

from __future__ import annotations


class InputError(ValueError):
    """Bad usage or input: one line that says what, where and what to do. Exit code 2."""


class RunError(RuntimeError):
    """The run itself failed. Exit code 1."""
