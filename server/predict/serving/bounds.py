"""What a request may have, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """examples: of a request. body: bytes of it. requests: those that are read at the same time."""

    examples: int = 4096
    body: int = 64 * 2**20
    requests: int = 1024
