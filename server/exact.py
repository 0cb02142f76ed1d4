"""Algorithms 1 and 2, the mean over the clients: exact, so that updates can be added in the order of arrival. Pure.

A term is cut into whole multiples of a few powers of two, the *units*, which lie BITS apart. Of each unit the multiples
are summed in float64, which is exact for two million terms; so is the cutting.

    term = q_1 * 2^(32 * k) + q_2 * 2^(32 * (k - 1)) + ...        each q a whole number of at most 32 bits and a sign
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from perennial.common.wire.chains import Vector

_BITS = 32
# Rounds to whole numbers what is added to it and taken away again.
_ROUND = 1.5 * 2.0**52
MOST_TERMS = 2 ** (53 - _BITS)
# Values that are worked through at a time: what they take stays in the processor's cache.
_CHUNK = 8192
# Of 24 bits of a float32 times this a float64 holds all.
MOST_WEIGHT = 2**29


class ExactMean:
    """The weighted mean of float32 vectors (P,), the same to the last bit in whatever order they are added.

    It is x_bar, or y_bar (Algorithm 1, line 5; Algorithm 2, lines 6 and 7).
    """

    def __init__(self) -> None:
        self._sums: dict[int, NDArray[np.float64]] = {}
        self._weight = Fraction(0)
        self.terms = 0

    def add(self, model: Vector, weight: float) -> None:
        """Add a model of finite values, with a whole weight or a part of 1 that float32 holds."""
        if self.terms >= MOST_TERMS:
            raise ValueError(f"at most {MOST_TERMS} models can be summed exactly")
        if not 0 < weight <= 2.0**52:
            raise ValueError(f"weight must be in (0, 2^52], got {weight}")
        self.terms += 1
        self._weight += Fraction(weight)
        low = math.fmod(weight, MOST_WEIGHT)
        for part in (low, weight - low):
            if part:
                for start in range(0, len(model), _CHUNK):
                    here = slice(start, start + _CHUNK)
                    self._add(model[here].astype(np.float64) * part, here, len(model))
        if not self._sums:
            self._sums[0] = np.zeros(len(model))

    def mean(self) -> Vector:
        """Return the mean, rounded from a sum that is exact to more bits than a float64 has."""
        if not self.terms:
            raise ValueError("a mean of nothing")
        sums = [self._sums[unit] for unit in sorted(self._sums, reverse=True)]
        mean = np.empty(len(sums[0]), np.float32)
        for start in range(0, len(mean), _CHUNK):
            here = slice(start, start + _CHUNK)
            mean[here] = _total([sum_[here] for sum_ in sums]) / float(self._weight)
        return mean

    def _add(self, left: NDArray[np.float64], here: slice, size: int) -> None:
        """Add a chunk of a vector of that size, which is used up."""
        largest = max(float(left.max(initial=0.0)), -float(left.min(initial=0.0)))
        unit, whole = math.frexp(largest)[1] // _BITS, np.empty_like(left)
        while left.any():
            rounding = _ROUND * 2.0 ** (_BITS * unit)
            np.add(left, rounding, out=whole)
            whole -= rounding
            left -= whole
            if unit not in self._sums:
                self._sums[unit] = np.zeros(size)
            self._sums[unit][here] += whole
            unit -= 1


def _total(terms: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the sum of a chunk's units, the greatest first, rounded once."""
    total, rest = terms[0], np.zeros_like(terms[0])
    for term in terms[1:]:
        # Knuth's sum of two: what is rounded away is kept.
        summed = total + term
        back = summed - total
        rest += (total - (summed - back)) + (term - back)
        total = summed
    whole: NDArray[np.float64] = total + rest
    return whole
