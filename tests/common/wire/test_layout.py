"""Models as vectors and back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.wire.layout import Layout

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5)


@given(shapes)
def test_flatten_and_unflatten_are_inverse(sizes: list[tuple[int, ...]]) -> None:
    layout = Layout(tuple(f"a{place}" for place in range(len(sizes))), tuple(sizes))
    vector = np.arange(layout.size, dtype=np.float32)
    arrays = layout.unflatten(vector)
    assert [array.shape for array in arrays.values()] == sizes
    assert (layout.flatten(arrays) == vector).all()
    assert Layout.of(arrays) == layout


def test_unflattened_arrays_are_views() -> None:
    vector = np.zeros(6, np.float32)
    Layout(("a", "b"), ((2, 2), (2,))).unflatten(vector)["b"][1] = 5
    assert vector.tolist() == [0, 0, 0, 0, 0, 5]


def test_the_order_is_the_layouts_and_not_the_mappings() -> None:
    arrays = {"b": np.ones(1, np.float32), "a": np.zeros(2, np.float32)}
    assert Layout(("a", "b"), ((2,), (1,))).flatten(arrays).tolist() == [0, 0, 1]


def test_whole_numbers_and_flags_keep_their_dtype_and_are_never_averaged() -> None:
    arrays = {"w": np.array([0.5, 1.5], np.float32), "count": np.array(7), "mask": np.array([True, False])}
    layout = Layout.of(arrays)
    vector = layout.flatten(arrays)
    back = layout.unflatten(vector)
    assert {name: array.dtype for name, array in back.items()} == {name: array.dtype for name, array in arrays.items()}
    assert all(isinstance(back[name], np.ndarray) for name in arrays)
    assert all((back[name] == array).all() for name, array in arrays.items())
    assert layout.settled(vector * 3, vector).tolist() == [1.5, 4.5, 7, 1, 0]
