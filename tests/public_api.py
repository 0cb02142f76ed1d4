"""The public API as text: every public name with its signature. ``python -m tests.public_api`` writes it anew."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODULES = ("perennial", "perennial.partitioners", "perennial.testing")
LISTED = Path(__file__).resolve().parents[1] / "docs" / "public-api.txt"


def public_api() -> str:
    """Return a line for each public function, class, method and property."""
    return "".join(f"{line}\n" for module in MODULES for line in _lines(module))


def digest(text: str) -> str:
    """Return what CHANGELOG.md names the API by."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _lines(module: str) -> Iterator[str]:
    found = importlib.import_module(module)
    for name in sorted(found.__all__):
        value = getattr(found, name)
        yield f"{module}.{name}{_signature(value)}"
        if inspect.isclass(value):
            for member in sorted(_members(value)):
                part = inspect.getattr_static(value, member)
                kind = ": property" if isinstance(part, property) else _signature(getattr(value, member))
                yield f"{module}.{name}.{member}{kind}"


def _members(of: type) -> set[str]:
    """Return the public methods and properties that this project defines, inherited ones among them."""
    ours = [base for base in of.__mro__ if base.__module__.startswith("perennial.")]
    return {name for base in ours for name, value in vars(base).items()
            if not name.startswith("_") and (callable(value) or isinstance(value, property))}  # fmt: skip


def _signature(of: Any) -> str:
    # A default that is a function shows where it lies in memory.
    return re.sub(r"<.*? at 0x\w+>", "…", str(inspect.signature(of)))


if __name__ == "__main__":
    text = public_api()
    LISTED.write_text(text, encoding="utf-8")
    print(f"{LISTED} is written; say in CHANGELOG.md what changed, and name the API there: {digest(text)}")
