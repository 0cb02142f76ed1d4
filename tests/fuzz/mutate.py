"""Mutations: values that break careless readers, and seeded changes to bytes, JSON values and text."""

from __future__ import annotations

import copy
import datetime
import math
import random
from typing import Any

DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30,
    10**400, -(10**400), 10**5000, 0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-320, 1e30, 1.7e308, math.nan, math.inf, -math.inf,
    "", " ", "a", "auto", "0", "true", "digits", "linear", "mean", "..", "/", "\0", "\ud800", "x" * 5000, "é\n\t",
    b"", b"\x93NUMPY", [], [0], [1, 2], [1, 1], [-1], [None], [""], [[]], [2**31], [1.5], ["a"], [True], DEEP,
    {}, {"a": 1}, {"": {}}, datetime.date(2026, 3, 27), 1j,
)  # fmt: skip


def value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return ``content`` with one to four small changes: bits, bytes, cuts, copies, insertions."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and place < len(data):
            data[place] = rng.choice((0, 1, 127, 128, 255, 10, 34, 39, 40, 91, 123, rng.randrange(256)))
        elif kind == 2:
            del data[place:]
        elif kind == 3:
            del data[place : place + rng.randint(1, 16)]
        elif kind == 4:
            source = rng.randrange(len(data) + 1)
            data[place:place] = data[source : source + rng.randint(1, 32)]
        else:
            data[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\1\0\0\0"))
    return bytes(data)


def changed_tree(rng: random.Random, tree: Any) -> Any:
    """Return a copy of a tree of dicts and lists with one to three of its places changed, dropped, doubled or added."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        holders = [holder for holder in _holders(tree) if holder]
        if not holders:
            return value(rng)
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        kind = rng.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other = rng.choice(holders)
            holder[key] = copy.deepcopy(rng.choice(list(other.values()) if isinstance(other, dict) else other))
        elif kind == 2 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 3 and isinstance(holder, dict):
            holder[rng.choice(("", "extra", "x" * 3000, *map(str, holder)))] = value(rng)
        elif kind == 4 and type(holder[key]) in (int, float):
            holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 10, repr(1.5), [holder[key]]))
        else:
            holder[key] = value(rng)
    return tree


def _holders(tree: Any, depth: int = 5) -> list[Any]:
    if isinstance(tree, dict | list) and depth:
        items = list(tree.values()) if isinstance(tree, dict) else tree
        return [tree, *(found for item in items for found in _holders(item, depth - 1))]
    return []
