"""Which tests need what a machine may lack."""

from __future__ import annotations

import pytest

from perennial.client.engines import compiler


def _has_compiler() -> bool:
    try:
        compiler.find()
    except compiler.NoCompiler:
        return False
    return True


needs_compiler = pytest.mark.skipif(not _has_compiler(), reason="no C++ compiler")
