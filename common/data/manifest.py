"""``manifest.json`` of a folder of shards: what its examples are, how many blocks it has, and whose data it holds.

Format 2, which is written:
    {"format": 2, "blocks": 2, "clients": [0, 1], "x": [{"dtype": "float32", "shape": [3]}, ...],
     "y": {"dtype": "int64", "shape": [], "classes": 10}}
y is null if examples have no target; classes is there if y is a label. A dtype may be a list of those that are taken.
Format 1, which is still read, has ``shape`` and ``classes`` of one uint8 or float32 input and a label.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perennial.common.command.errors import InputError, shown
from perennial.common.data.examples import DTYPES, TARGET_INTEGER, ArrayType, Signature

FILE = "manifest.json"
FORMAT = 2
_PIXELS_OR_NUMBERS = ("uint8", "float32")
_TARGETS = {"bool", TARGET_INTEGER, "float16", "float32", "float64"}
_MOST_INPUTS = 1000


def read(folder: Path) -> tuple[Signature, int, tuple[int, ...]]:
    """Return the signature of the examples, the number of blocks and the clients, ascending."""
    path = folder / FILE
    content = _content(path)
    if content.get("format") not in (1, FORMAT):
        raise InputError(f"{path}: format must be 1 or {FORMAT}, got {shown(content.get('format'))}")
    blocks = _count(content, "blocks", path)
    clients = _whole_numbers(content, "clients", path, least=0)
    if len(set(clients)) != len(clients):
        raise InputError(f"{path}: clients has an id twice")
    signature = _first_format(content, path) if content["format"] == 1 else read_signature(content, path)
    return signature, blocks, tuple(sorted(clients))


def write(folder: Path, signature: Signature, blocks: int, clients: Sequence[int]) -> None:
    """Write the manifest at once: a folder has a whole one or none."""
    content = {"format": FORMAT, "blocks": blocks, "clients": list(clients), **written_signature(signature)}
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"manifest.{os.getpid()}.json"
    partial.write_text(json.dumps(content) + "\n")
    partial.replace(folder / FILE)


def written_signature(signature: Signature) -> dict[str, Any]:
    """Return ``x`` and ``y`` of a manifest."""
    y = None if signature.y is None else _written(signature.y)
    if y is not None and signature.classes:
        y["classes"] = signature.classes
    return {"x": [_written(kind) for kind in signature.x], "y": y}


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"{path.parent} is not a folder of shards: {path.name} is missing; `flower-simulation shards` writes one"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _first_format(content: dict[str, Any], path: Path) -> Signature:
    shape = _whole_numbers(content, "shape", path)
    if not shape:
        raise InputError(f"{path}: shape must be whole numbers of at least 1, got []")
    return Signature.labelled(shape, _count(content, "classes", path), _PIXELS_OR_NUMBERS)


def read_signature(content: dict[str, Any], path: Path) -> Signature:
    """Return the signature that ``x`` and ``y`` of a manifest stand for; ``path`` is the file, for errors."""
    x, y = content.get("x"), content.get("y")
    if not isinstance(x, list) or not 1 <= len(x) <= _MOST_INPUTS:
        raise InputError(f"{path}: x must be a list with a dtype and a shape for each input, got {shown(x)}")
    inputs = tuple(_array_type(one, f"x {index}", path) for index, one in enumerate(x))
    if y is None and "y" in content:
        return Signature(inputs, None)
    target = _array_type(y, "y", path)
    if not set(target.dtypes) <= _TARGETS:
        raise InputError(f"{path}: dtype of y must be one of {', '.join(sorted(_TARGETS))}, got {target}")
    classes = _count(y, "classes", path) if isinstance(y, dict) and "classes" in y else 0
    if classes and target != ArrayType((TARGET_INTEGER,)):
        raise InputError(f"{path}: y has classes, so it must be a single {TARGET_INTEGER}, got {target}")
    return Signature(inputs, target, classes)


def _array_type(value: object, name: str, path: Path) -> ArrayType:
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} must have a dtype and a shape, got {shown(value)}")
    found = value.get("dtype")
    dtypes: list[Any] = found if isinstance(found, list) else [found]
    if not dtypes or any(dtype not in DTYPES for dtype in dtypes):
        raise InputError(f"{path}: dtype of {name} must be one of {', '.join(DTYPES)}, got {shown(found)}")
    return ArrayType(tuple(dtypes), _whole_numbers(value, "shape", path))


def _written(kind: ArrayType) -> dict[str, Any]:
    return {"dtype": kind.dtypes[0] if len(kind.dtypes) == 1 else list(kind.dtypes), "shape": list(kind.shape)}


def _count(content: dict[str, Any], key: str, path: Path) -> int:
    return _whole_numbers({key: [content.get(key)]}, key, path)[0]


def _whole_numbers(content: dict[str, Any], key: str, path: Path, least: int = 1) -> tuple[int, ...]:
    value = content.get(key)
    if not isinstance(value, list) or any(type(item) is not int or not least <= item < 2**31 for item in value):
        raise InputError(f"{path}: {key} must be whole numbers of at least {least}, got {shown(value)}")
    return tuple(value)
