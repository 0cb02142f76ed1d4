"""A tree as one JSON text and one safetensors blob: to the bit, without pickles, and checked before it is used.

A *tree* is what a state is made of: dicts with text keys, lists (tuples become lists), numbers, text, bool, None, and
NumPy arrays and scalars, or arrays made ``Later``, anywhere in it. Its arrays are in the blob by number, each distinct
one once. In the text

{"$array": 3}, {"$fortran": 3}   array 3 of the blob; in Fortran's memory order it is stored transposed
{"$scalar": 3}                   the NumPy scalar that array 3, of no dimension, holds
{"$float": "7ff8000000000000"}   the bits of a float that JSON has no word for
{"$int": "-0x10000000000000000"} a whole number of more than 64 bits
{"$$name": 1}                    the key $name
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from perennial.common.command.errors import InputError, shown

Tree = Any
FORMAT = 2
# More than any state has, and less than Python's own limit: a list that holds itself is refused by it.
_DEEPEST = 200
_END = 64


class DamagedError(ValueError):
    """What was read is not as it was written."""


class FormatError(DamagedError):
    """A text of another format, and otherwise whole."""


class Later:
    """An array of a tree that is made when it is needed: a state is taken after every round, and seldom written."""

    def __init__(self, make: Callable[[], NDArray[Any]]) -> None:
        self._make = make

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self._make()
        return array if dtype is None else array.astype(dtype)


class Written(NamedTuple):
    """A tree as it is stored."""

    text: str
    blob: bytes


def write(tree: Tree) -> Written:
    """Return text and blob of a tree; an InputError names the place of a value that cannot be kept."""
    arrays = _Arrays()
    coded = _encode(tree, "", arrays, 0)
    blob = save({str(number): array for number, array in enumerate(arrays.stored)})
    digest = hashlib.sha256(blob).hexdigest()
    body = json.dumps({"format": FORMAT, "arrays": len(arrays.stored), "sha256": digest, "tree": coded})
    return Written(json.dumps({"sha256": _digest(body), "body": body}), blob)


def read(text: str | bytes, blob: bytes) -> Tree:
    """Return the tree, every place with an array of its own; DamagedError for anything that is not as it was written.

    Arrays come back in the machine's byte order.
    """
    try:
        body = _checked_body(text)
        if hashlib.sha256(blob).hexdigest() != body["sha256"]:
            raise DamagedError("the checksum of its arrays differs")
        stored = load(blob)
        if len(stored) != body["arrays"]:
            raise DamagedError(f"it has {len(stored)} arrays, and had {shown(body['arrays'])}")
        return _decode(body["tree"], stored)
    except DamagedError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error,
            SafetensorError) as error:  # fmt: skip
        raise DamagedError(f"{type(error).__name__}: {str(error)[:160]}") from error


def keeps(dtype: np.dtype[Any]) -> bool:
    """Tell whether arrays of ``dtype`` can be kept: what every version of safetensors has for NumPy."""
    return dtype.kind in "biuf" and dtype.itemsize <= 8


def first_difference(one: Tree, other: Tree, path: str = "") -> str | None:
    """Return the place of the first value that differs, in type or in a bit; None: the trees are the same."""
    one, other = _made(one), _made(other)
    if type(one) is not type(other):
        return path or "the whole"
    if isinstance(one, dict):
        if list(one) != list(other):
            return path or "the whole"
        pairs = [(f"{path}.{key}" if path else key, one[key], other[key]) for key in one]
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return path or "the whole"
        pairs = [(f"{path}[{place}]", *both) for place, both in enumerate(zip(one, other, strict=True))]
    else:
        return None if _bits(one) == _bits(other) else path or "the whole"
    differences = (first_difference(mine, its, place) for place, mine, its in pairs)
    return next((place for place in differences if place is not None), None)


def _checked_body(text: str | bytes) -> dict[str, Any]:
    outer = json.loads(text)
    if _digest(outer["body"]) != outer["sha256"]:
        raise DamagedError("its checksum differs")
    body: dict[str, Any] = json.loads(outer["body"], parse_constant=_no_constant)
    if body["format"] != FORMAT:
        raise FormatError(f"it has format {shown(body['format'])}, not {FORMAT}")
    return body


def _encode(value: Tree, path: str, arrays: _Arrays, depth: int) -> Any:
    value = _made(value)
    kind = type(value)
    if depth > _DEEPEST:
        raise InputError(f"{_place(path)} is nested more than {_DEEPEST} deep; does a list or a dict hold itself?")
    if value is None or kind is bool or (kind is str and _is_text(value, path)):
        return value
    if kind is int:
        return value if value.bit_length() < 64 else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if kind is dict:
        return {_key(key, path): _encode(one, f"{path}.{key}" if path else key, arrays, depth + 1)
                for key, one in value.items()}  # fmt: skip
    if kind in (list, tuple):
        return [_encode(one, f"{path}[{place}]", arrays, depth + 1) for place, one in enumerate(value)]
    if (kind is np.ndarray or isinstance(value, np.generic)) and keeps(value.dtype):
        return _encode_array(value, arrays)
    what = f"{kind.__name__} of {value.dtype}" if isinstance(value, np.ndarray) else kind.__name__
    raise InputError(f"{_place(path)} is a {what}, which cannot be kept; make it numbers, text or arrays of numbers")


def _made(value: Tree) -> Tree:
    return np.asarray(value) if type(value) is Later else value


def _encode_array(value: Any, arrays: _Arrays) -> dict[str, int]:
    if isinstance(value, np.generic):
        return {"$scalar": arrays.number(np.asarray(value))}
    # The order is kept because sums depend on it.
    if value.flags.f_contiguous and not value.flags.c_contiguous:
        return {"$fortran": arrays.number(value.T)}
    return {"$array": arrays.number(value)}


def _decode(value: Any, stored: dict[str, NDArray[Any]]) -> Tree:
    if isinstance(value, list):
        return [_decode(one, stored) for one in value]
    if not isinstance(value, dict):
        return value
    mark = next(iter(value), "")
    if not mark.startswith("$") or mark.startswith("$$"):
        return {key.removeprefix("$"): _decode(one, stored) for key, one in value.items()}
    ((mark, what),) = value.items()
    if mark == "$int":
        return int(what, 16)
    if mark == "$float":
        return struct.unpack(">d", bytes.fromhex(what))[0]
    # A copy: whoever changes an array in place must not change another place of the tree.
    array = stored[str(what)].copy()
    return {"$array": array, "$fortran": array.T, "$scalar": array[()]}[mark]


class _Arrays:
    """The distinct arrays of a tree: predictors often are a chain's head, and are then stored once."""

    def __init__(self) -> None:
        self.stored: list[NDArray[Any]] = []
        self._alike: dict[tuple[str, tuple[int, ...], bytes], list[int]] = {}

    def number(self, array: NDArray[Any]) -> int:
        # safetensors takes the memory as it lies; ascontiguousarray would give a scalar a dimension.
        plain = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        content = plain.reshape(-1).view(np.uint8)
        # Arrays that differ nearly always differ here; those that do not are compared whole.
        ends = content[:_END].tobytes() + content[-_END:].tobytes()
        alike = self._alike.setdefault((plain.dtype.str, plain.shape, ends), [])
        for number in alike:
            if np.array_equal(self.stored[number].reshape(-1).view(np.uint8), content):
                return number
        alike.append(len(self.stored))
        self.stored.append(plain)
        return alike[-1]


def _key(key: object, path: str) -> str:
    if type(key) is not str or not _is_text(key, path):
        raise InputError(f"{_place(path)} has the key {shown(key)}, and only text can be a key")
    return f"${key}" if key.startswith("$") else key


def _is_text(value: str, path: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{_place(path)}: {shown(value)} is not text that UTF-8 can write") from error
    return True


def _bits(leaf: Tree) -> Any:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.str, leaf.shape, leaf.tobytes()
    return struct.pack(">d", leaf) if isinstance(leaf, float) else leaf


def _place(path: str) -> str:
    return path[:160] if path else "the whole"


def _no_constant(name: str) -> None:
    raise DamagedError(f"it has the constant {name}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
