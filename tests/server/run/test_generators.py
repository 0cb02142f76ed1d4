"""The generators that strategies draw from go on where they stood."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.server.run import generators, tree


def draws() -> list[Any]:
    gauss = [random.random(), random.gauss(0, 1), *random.sample(range(100), 5)]
    return [*gauss, *np.random.normal(size=3).tolist(), int(np.random.randint(1000))]  # noqa: NPY002


@given(st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_both_generators_go_on_to_the_bit(seed: int, before: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    for _ in range(before):
        # One of a pair: the other one waits in the state.
        random.gauss(0, 1)
        np.random.normal()  # noqa: NPY002
    saved = tree.read(*tree.write(generators.save()))
    expected = draws()
    draws()
    generators.restore(saved)
    assert draws() == expected


@pytest.mark.parametrize("broken", [None, {}, {"python": {}}, {"python": None, "numpy": None}])
def test_what_is_no_state_is_damage_and_changes_nothing(broken: Any) -> None:
    before = generators.save()
    with pytest.raises(tree.DamagedError):
        generators.restore(broken)
    assert tree.first_difference(generators.save(), before) is None


def test_half_a_state_changes_neither_generator() -> None:
    other = generators.save()
    random.random()
    before = generators.save()
    with pytest.raises(tree.DamagedError):
        generators.restore({**other, "numpy": {"bit_generator": "PCG64"}})
    assert tree.first_difference(generators.save(), before) is None
