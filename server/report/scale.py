"""What a run's scores are: their name, which ones are better, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

MISSING = "-"


@dataclass(frozen=True)
class Scale:
    """An accuracy is a fraction, which is shown in %; any other score is a plain number."""

    name: str = "accuracy"
    better: str = "higher"  # or "lower"

    @property
    def in_percent(self) -> bool:
        return self.name == "accuracy"

    @property
    def factor(self) -> float:
        """What a value is multiplied by before it is drawn."""
        return 100.0 if self.in_percent else 1.0

    @property
    def unit(self) -> str:
        return " %" if self.in_percent else ""

    @property
    def label(self) -> str:
        """What stands at an axis."""
        return "accuracy, %" if self.in_percent else self.name

    def text(self, value: float) -> str:
        """0.6234 -> `62.3` for an accuracy, else `0.6234`; what was not measured -> `-`."""
        if not np.isfinite(value):
            return MISSING
        return f"{100 * value:.1f}" if self.in_percent else f"{value:.4g}"

    def best_of(self, values: Iterable[float]) -> float:
        return max(values) if self.better == "higher" else min(values)


ACCURACY = Scale()
# Of runs whose scores have nothing in common: none is better than another.
SEVERAL = Scale("score", "")


def shared(scales: Iterable[Scale]) -> Scale:
    """Return the scale that all runs have, or SEVERAL."""
    found = set(scales)
    return found.pop() if len(found) == 1 else SEVERAL
