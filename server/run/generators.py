"""Where the generators stand that Flower's strategies draw from: Python's `random` (nodes) and NumPy's own (noise)."""

from __future__ import annotations

import random

import numpy as np

from perennial.server.run.tree import DamagedError, Later, Tree


def save() -> Tree:
    """Return the states of both generators of this process as a tree."""
    version, numbers, gauss = random.getstate()
    return {
        "python": {"version": version, "numbers": Later(lambda: np.array(numbers, np.uint32)), "gauss": gauss},
        # A strategy's noise comes from the global generator, whatever we would have chosen.
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
    }


def restore(tree: Tree) -> None:
    """Put both generators where they were; DamagedError if ``tree`` is not what ``save`` returned."""
    before = random.getstate()
    try:
        python = tree["python"]
        random.setstate((python["version"], tuple(np.asarray(python["numbers"]).tolist()), python["gauss"]))
        np.random.set_state(tree["numpy"])  # noqa: NPY002
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        random.setstate(before)
        raise DamagedError(f"the states of the generators cannot be used: {error}") from error
