"""A tree: to the bit and back, or refused by its place; anything that is not as it was written is noticed."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from perennial.common.command.errors import InputError
from perennial.server.run.tree import DamagedError, FormatError, Written, first_difference, read, write

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]

an_array = st.sampled_from(DTYPES).flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
a_number = st.integers() | st.floats() | st.integers(2**63, 2**80) | st.integers(-(2**80), -(2**63))
a_scalar = an_array.filter(lambda array: array.size > 0).map(lambda array: array.reshape(-1)[0])
a_leaf = st.none() | st.booleans() | a_number | st.text(max_size=5) | an_array | a_scalar
a_key = st.text(max_size=4) | st.sampled_from(["$", "$$", "$array", "$int", "$x", ""])
a_tree = st.recursive(a_leaf, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(a_key, inner, max_size=3))


def again(tree: Any) -> Any:
    return read(*write(tree))


def with_body(**changes: Any) -> Written:
    """Return what was made by hand: its checksums fit, its content need not."""
    text, blob = write({"a": np.zeros(2), "b": math.nan})
    body = json.dumps({**json.loads(json.loads(text)["body"]), **changes})
    return Written(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}), blob)


@given(a_tree)
def test_a_tree_round_trips_to_the_bit(tree: Any) -> None:
    assert first_difference(again(tree), tree) is None


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, -0.0, 5e-324, 2**4000, -(2**20000), 2**63, -(2**64), 2**64 - 1], ids=lambda _: ""
)
def test_numbers_that_json_has_no_word_for_are_kept(value: float) -> None:
    assert first_difference(again([value]), [value]) is None


def test_a_nan_keeps_its_bits() -> None:
    value = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert struct.pack(">d", again(value)) == struct.pack(">d", value)


def test_tuples_become_lists() -> None:
    assert again({"a": (1, (2, 3))}) == {"a": [1, [2, 3]]}


def test_the_order_of_keys_is_kept() -> None:
    assert list(again({"b": 1, "a": 2, "c": 3})) == ["b", "a", "c"]


def test_memory_order_is_kept_because_sums_depend_on_it() -> None:
    found = again([np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(6.0).reshape(2, 3)])
    assert [one.flags.f_contiguous for one in found] == [True, False]
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(
    "array", [np.arange(10)[::3], np.arange(12).reshape(3, 4)[:, 1:3], np.arange(3, dtype=">i4"), np.arange(4)[::-1]]
)
def test_arrays_that_lie_otherwise_in_memory_keep_their_values(array: Any) -> None:
    found = again(array)
    assert found.tolist() == array.tolist()
    assert found.dtype == array.dtype.newbyteorder("=")


def test_arrays_of_the_same_bits_are_stored_once() -> None:
    array = np.arange(1000.0)
    _, blob = write({"a": array, "b": [array, array.copy()], "c": {"d": array[:]}})
    assert len(blob) < 2 * array.nbytes


def test_arrays_that_only_look_alike_are_apart() -> None:
    tree = [np.zeros(2), -np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.int64), np.array([np.nan, 0])]
    assert first_difference(again(tree), tree) is None


def test_arrays_that_differ_in_one_bit_in_their_middle_are_apart() -> None:
    tree = [np.zeros(1000), np.zeros(1000)]
    tree[1][500] = -0.0
    assert first_difference(again(tree), tree) is None


def test_a_change_in_place_changes_one_place_alone() -> None:
    array = np.zeros(2)
    one, other = again([array, array])
    one += 1
    assert other.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.zeros(1, np.complex64), "ndarray of complex64"),
        (np.zeros(1, np.longdouble), "ndarray of float128"),
        (np.array(["a"]), "ndarray of <U1"),
        (np.array([object()]), "ndarray of object"),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray of int64"),
        (np.datetime64("2026-01-01"), "datetime64"),
        (1j, "complex"),
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        (object(), "object"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_place(value: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"^chains\.mixed\[1\] is a {says}, which cannot be kept"):
        write({"chains": {"mixed": [0, value]}})


@pytest.mark.parametrize("tree", [{"a": {5: 1}}, {"a": {("b",): 1}}])
def test_keys_other_than_text_are_refused_by_their_place(tree: Any) -> None:
    with pytest.raises(InputError, match=r"^a has the key .*, and only text can be a key"):
        write(tree)


def test_text_that_utf_8_cannot_write_is_refused() -> None:
    with pytest.raises(InputError, match=r"a: '\\ud83d' is not text that UTF-8 can write"):
        write({"a": "\ud83d"})


def test_a_list_that_holds_itself_is_refused() -> None:
    tree: list[Any] = []
    tree.append(tree)
    with pytest.raises(InputError, match="does a list or a dict hold itself"):
        write(tree)


def test_one_tree_gives_the_same_bytes_each_time() -> None:
    assert write({"a": np.arange(3), "b": [1.5]}) == write({"a": np.arange(3), "b": [1.5]})


@settings(max_examples=300)
@given(st.data())
def test_any_damage_is_noticed_or_harmless(data: st.DataObject) -> None:
    tree = {"a": np.arange(5, dtype=np.float32), "b": [math.nan, 2**70, "text", None], "$c": np.float64(1)}
    written = write(tree)
    parts = [bytearray(written.text.encode()), bytearray(written.blob)]
    which = data.draw(st.integers(0, 1))
    parts[which][data.draw(st.integers(0, len(parts[which]) - 1))] = data.draw(st.integers(0, 255))
    del parts[which][data.draw(st.just(len(parts[which])) | st.integers(0, len(parts[which]))) :]
    try:
        found = read(bytes(parts[0]), bytes(parts[1]))
    except DamagedError:
        return
    assert first_difference(found, tree) is None


@pytest.mark.parametrize(
    "tree",
    [
        {"$array": 7}, {"$array": "0", "$int": "0x1"}, {"$scalar": None}, {"$float": "xy"}, {"$float": "00"},
        {"$int": 5}, {"$int": "g"}, {"$set": [1]}, {"$": 1}, {"a": {"$array": -1}}, [{"$fortran": {}}],
    ],
)  # fmt: skip
def test_marks_that_nobody_wrote_are_damage(tree: Any) -> None:
    with pytest.raises(DamagedError):
        read(*with_body(tree=tree))


@pytest.mark.parametrize("changes", [{"arrays": 2}, {"arrays": None}, {"sha256": 1}, {"tree": math.nan}])
def test_a_body_that_nobody_wrote_is_damage(changes: Any) -> None:
    with pytest.raises(DamagedError):
        read(*with_body(**changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"sha256": 1, "body": 2}', "[" * 100_000, "\xff"])
def test_a_text_that_is_no_tree_is_damage(text: str) -> None:
    with pytest.raises(DamagedError):
        read(text, write(None).blob)


def test_another_format_is_told_from_damage() -> None:
    with pytest.raises(FormatError, match="it has format 1, not 2"):
        read(*with_body(format=1))


def test_the_blob_of_another_tree_is_damage() -> None:
    with pytest.raises(DamagedError, match="the checksum of its arrays differs"):
        read(write({"a": np.zeros(2)}).text, write({"a": np.ones(2)}).blob)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b"),
        ({"a": 1}, {"a": 1.0}, "a"),
        ({"a": 0.0}, {"a": -0.0}, "a"),
        ({"a": 1}, {"b": 1}, "the whole"),
        ({"a": [1]}, {"a": [1, 2]}, "a"),
        ([np.zeros(2)], [np.zeros(2, np.float32)], "[0]"),
        ([math.nan], [math.nan], None),
    ],
)
def test_the_first_difference_is_named(one: Any, other: Any, place: str | None) -> None:
    assert first_difference(one, other) == place
