"""Things of a user's own, named ``package.module:name`` in files and flags."""

from __future__ import annotations

import importlib
import os
import sys

from perennial.common.command.errors import InputError


def is_name(text: str) -> bool:
    """Tell whether ``text`` names something of a user's own."""
    return ":" in text


def look_here_first() -> None:
    """Let the working folder be where modules are looked for first, as `python -m` does."""
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


def imported(key: str, text: str) -> object:
    """Return what ``text`` names; ``key`` is the key of the configuration that it stands for."""
    module, _, attribute = text.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{key} {text!r} cannot be imported: {error}; is its package installed here?") from error
