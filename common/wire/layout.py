"""A model as one flat float32 vector, and the way back to its named arrays. NumPy only.

Whole numbers and flags (BatchNorm's counter, a mask) have their place in the vector too. They have no average: whoever
averages models then takes them from one of the models (``settled``), as ``psgd.fold_named`` does for named arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.wire.chains import Vector

FLOAT = "float32"
# What arrays of FLOAT may travel in, at half the bytes.
HALF = "float16"
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8")
# float32 tells all whole numbers up to here apart.
MOST_WHOLE = 2**24


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's arrays, in state_dict order; no dtypes: all are float32."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ()

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Layout:
        dtypes = tuple(array.dtype.name for array in arrays.values())
        shapes = tuple(array.shape for array in arrays.values())
        return cls(tuple(arrays), shapes, () if set(dtypes) <= {FLOAT} else dtypes)

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Offsets of the arrays in the vector; the last one is its length."""
        return tuple(np.cumsum([0, *(prod(shape) for shape in self.shapes)]).tolist())

    @cached_property
    def dtype_of(self) -> Mapping[str, str]:
        """The dtype of each array, by name."""
        return dict(zip(self.names, self.dtypes or (FLOAT,) * len(self.names), strict=True))

    @cached_property
    def whole(self) -> NDArray[np.bool_] | None:
        """True where the vector holds whole numbers or flags, (P,); None if it holds none."""
        if not self.dtypes:
            return None
        parts = [np.full(prod(shape), dtype != FLOAT) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]
        return np.concatenate(parts)

    @property
    def size(self) -> int:
        return self.bounds[-1]

    def flatten(self, arrays: Mapping[str, NDArray[Any]]) -> Vector:
        return np.concatenate([np.ravel(arrays[name]) for name in self.names], dtype=np.float32)

    def views(self, vector: Vector) -> dict[str, NDArray[np.float32]]:
        """Return the places of all arrays in ``vector``, by name."""
        return {
            name: vector[start:stop].reshape(shape)
            for name, shape, start, stop in zip(self.names, self.shapes, self.bounds, self.bounds[1:], strict=False)
        }

    def unflatten(self, vector: Vector) -> dict[str, NDArray[Any]]:
        """Return the arrays by name: views of ``vector``, but for whole numbers and flags."""
        return {
            # NumPy makes a scalar, which is no array, out of the rounding of an array without axes.
            name: part if self.dtype_of[name] == FLOAT else np.asarray(np.rint(part)).astype(self.dtype_of[name])
            for name, part in self.views(vector).items()
        }

    def settled(self, average: Vector, newest: Vector) -> Vector:
        """Return ``average`` with the whole numbers and flags of ``newest``."""
        return average if self.whole is None else np.where(self.whole, newest, average)
