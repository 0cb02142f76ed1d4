"""What an example is: the types of its arrays, how files name them, and what no array of examples may hold.

An example has any number of inputs x, each an array of a real dtype, and at most one target y. NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command.errors import InputError

# What a model may be told by a further input; if not its block, it is told the time.
BLOCK = "block"
# The inputs of many examples: each (n, *shape), the same n.
Inputs = tuple[NDArray[Any], ...]
Targets = NDArray[Any] | None

# Everything real that torch can take; object and complex are no data, and long doubles differ from machine to machine.
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
          "float64")  # fmt: skip
_INTEGERS = tuple(name for name in DTYPES if "int" in name)


@dataclass(frozen=True)
class ArrayType:
    """An array of one example: the names of the dtypes that it may have, and its shape; () is a single number."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, array: NDArray[Any]) -> ArrayType:
        return cls((array.dtype.name,), array.shape[1:])

    @property
    def is_integer(self) -> bool:
        return all(name in _INTEGERS for name in self.dtypes)

    def check(self, array: NDArray[Any], count: int, where: str) -> None:
        """Refuse an array of ``count`` examples that is not of this type, or has values that are not finite."""
        if array.dtype.name not in self.dtypes or array.shape != (count, *self.shape):
            shape = ", ".join(map(str, ("n", *self.shape))) + ("" if self.shape else ",")
            raise InputError(
                f"{where} must be {' or '.join(self.dtypes)} of shape ({shape}), here with n = {count}, "
                f"got {array.dtype} {array.shape}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{where} has values that are not finite")

    def zeros(self, count: int) -> NDArray[Any]:
        return np.zeros((count, *self.shape), self.dtypes[-1])

    def __str__(self) -> str:
        return f"{' or '.join(self.dtypes)} {'x'.join(map(str, self.shape))}".rstrip()


# What integers of any width become when they are targets.
TARGET_INTEGER = "int64"


@dataclass(frozen=True)
class Signature:
    """The types of an example's arrays.

    y: None if examples have no target. classes: if y is a label, one of [0, classes); 0 if it is something else.
    told: what the last input tells the model, "block" or "time"; "" if all inputs are the example's own.
    """

    x: tuple[ArrayType, ...]
    y: ArrayType | None
    classes: int = 0
    told: str = ""

    @classmethod
    def labelled(cls, shape: tuple[int, ...], classes: int, dtypes: tuple[str, ...] = ("float32",)) -> Signature:
        """Return the signature of examples with one input and a label."""
        return cls((ArrayType(dtypes, shape),), ArrayType((TARGET_INTEGER,)), classes)

    @classmethod
    def of(cls, x: Inputs, y: Targets, where: str) -> Signature:
        """Return the signature of these arrays, which are refused if they are no examples.

        Single integers from 0 on are taken for labels.
        """
        if not x or any(array.ndim == 0 for array in x):
            raise InputError(f"{where}: x must be one or more arrays with a row for each example")
        for name, array in named(x, y).items():
            if array.dtype.name not in DTYPES:
                raise InputError(f"{where}: {name} must be of real numbers, got {array.dtype}")
        y = as_target(y, where)
        target = None if y is None else ArrayType.of(y)
        found = cls(tuple(map(ArrayType.of, x)), target, _classes(y))
        found.check(x, y, where)
        return found

    def check(self, x: Inputs, y: Targets, where: str) -> None:
        """Refuse arrays that are not examples of this signature; integer targets are int64 (``as_target``)."""
        if len(x) != len(self.x) or (y is None) != (self.y is None):
            raise InputError(f"{where}: arrays must be {', '.join(self.names)}, got {', '.join(named(x, y))}")
        count = len(x[0])
        for name, array, kind in zip(x_names(len(x)), x, self.x, strict=True):
            kind.check(array, count, f"{where}: {name}")
        if y is not None and self.y is not None:
            self.y.check(y, count, f"{where}: y")
            if self.classes and count and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                outside = next(label for label in (int(y.min()), int(y.max())) if not 0 <= label < self.classes)
                raise InputError(f"{where}: label {outside} is outside [0, {self.classes}), the classes of the data")

    def take(self, arrays: Mapping[str, NDArray[Any]], where: str) -> tuple[Inputs, Targets]:
        """Return inputs and targets out of the arrays of a file, which are refused if they are of another signature."""
        x, y = tuple(arrays[name] for name in x_names(len(self.x))), as_target(arrays.get("y"), where)
        self.check(x, y, where)
        return x, y

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays in a file."""
        return (*x_names(len(self.x)), *(() if self.y is None else ("y",)))

    def zeros(self, count: int) -> tuple[Inputs, Targets]:
        """Return examples of this signature, to try what is to take such ones."""
        return tuple(kind.zeros(count) for kind in self.x), None if self.y is None else self.y.zeros(count)

    def __str__(self) -> str:
        x = ", ".join(f"{name} {kind}" for name, kind in zip(x_names(len(self.x)), self.x, strict=True))
        y = "no y" if self.y is None else f"y in {self.classes} classes" if self.classes else f"y {self.y}"
        return f"{x}, {y}"


def _classes(y: Targets) -> int:
    """Return how many labels there are, if y is labels, else 0."""
    is_labels = y is not None and y.ndim == 1 and y.dtype.kind == "i" and int(y.min(initial=0)) >= 0
    return int(y.max(initial=-1)) + 1 if y is not None and is_labels else 0


def x_names(count: int) -> tuple[str, ...]:
    """Return the names of so many inputs in a file: ``x`` alone, or ``x0``, ``x1`` and so on."""
    return ("x",) if count == 1 else tuple(f"x{index}" for index in range(count))


def named(x: Inputs, y: Targets) -> dict[str, NDArray[Any]]:
    """Return the arrays by their names in a file."""
    arrays = dict(zip(x_names(len(x)), x, strict=True))
    return arrays if y is None else {**arrays, "y": y}


def as_target(y: Targets, where: str) -> Targets:
    """Return targets as they are kept: integers of any width as int64."""
    if y is None or y.dtype.name not in _INTEGERS:
        return y
    if y.dtype == np.uint64 and y.size and int(y.max()) >= 2**63:
        raise InputError(f"{where}: y has {int(y.max())}, which is too large for int64")
    return y.astype(np.int64, copy=False)
