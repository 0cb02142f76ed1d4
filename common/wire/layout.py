"""A model as one flat float32 vector, and the way back to its named arrays. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from perennial.common.wire.chains import Vector


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's arrays, in state_dict order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[np.float32]]) -> Layout:
        return cls(tuple(arrays), tuple(array.shape for array in arrays.values()))

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Offsets of the arrays in the vector; the last one is its length."""
        return tuple(np.cumsum([0, *(prod(shape) for shape in self.shapes)]).tolist())

    @property
    def size(self) -> int:
        return self.bounds[-1]

    def flatten(self, arrays: Mapping[str, NDArray[np.float32]]) -> Vector:
        return np.concatenate([np.ravel(arrays[name]) for name in self.names], dtype=np.float32)

    def unflatten(self, vector: Vector) -> dict[str, NDArray[np.float32]]:
        """Return views of ``vector``, by name."""
        return {
            name: vector[start:stop].reshape(shape)
            for name, shape, start, stop in zip(self.names, self.shapes, self.bounds, self.bounds[1:], strict=False)
        }
