"""The two ways a command ends badly; anything else that is raised is a bug."""

from __future__ import annotations

from reprlib import Repr


class InputError(ValueError):
    """Bad usage or input: one line that says what, where and what to do. Exit code 2."""


class RunError(RuntimeError):
    """The run itself failed. Exit code 1."""


class _Short(Repr):
    """Bounded in depth, breadth and length: what is shown comes from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 80, 80

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out numbers of thousands of digits.
        return repr(x) if x.bit_length() <= 256 else f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return ``value`` for a message: on one line and short, whatever it is."""
    return _SHORT.repr(value)[:160]
