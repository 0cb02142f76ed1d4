"""What examples may be, and the manifest that says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.data import manifest
from perennial.common.data.examples import DTYPES, ArrayType, Signature, x_names

TWO = {"format": 2, "blocks": 1, "clients": [0], "x": [{"dtype": "float32", "shape": [3]}], "y": None}

array_types = st.builds(
    ArrayType, st.sampled_from([(name,) for name in DTYPES]), st.lists(st.integers(1, 9), max_size=3).map(tuple)
)
targets = st.none() | st.builds(
    ArrayType,
    st.sampled_from([("int64",), ("float32",), ("bool",)]),
    st.lists(st.integers(1, 9), max_size=2).map(tuple),
)


@st.composite
def signatures(draw: st.DrawFn) -> Signature:
    x, y = tuple(draw(st.lists(array_types, min_size=1, max_size=3))), draw(targets)
    is_number = y is not None and y == ArrayType(("int64",))
    return Signature(x, y, draw(st.integers(0, 1000)) if is_number else 0)


@given(signatures())
def test_a_manifest_says_what_was_written(tmp_path_factory: pytest.TempPathFactory, signature: Signature) -> None:
    folder = tmp_path_factory.mktemp("folder")
    manifest.write(folder, signature, 3, [4, 1])
    assert manifest.read(folder) == (signature, 3, (1, 4))
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]


@given(signatures())
def test_zeros_are_examples_of_their_signature(signature: Signature) -> None:
    x, y = signature.zeros(2)
    signature.check(x, y, "here")
    found = Signature.of(x, y, "here")
    assert (found.x, found.y) == (signature.x, signature.y)


def test_labels_are_single_integers_from_zero() -> None:
    x = (np.zeros((3, 2), np.float32),)
    assert Signature.of(x, np.array([0, 4, 1], np.uint8), "here").classes == 5
    assert Signature.of(x, np.array([0, -4, 1]), "here").classes == 0
    assert Signature.of(x, np.zeros((3, 2), int), "here").classes == 0
    assert Signature.of(x, np.zeros(3), "here").classes == 0
    assert Signature.of(x, None, "here") == Signature((ArrayType(("float32",), (2,)),), None)


def test_one_input_is_called_x_and_several_are_numbered() -> None:
    assert (x_names(1), x_names(3)) == (("x",), ("x0", "x1", "x2"))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((), None, "x must be one or more arrays"),
        ((np.float32(1),), None, "x must be one or more arrays"),
        ((np.zeros(2, complex),), None, "x must be of real numbers, got complex128"),
        ((np.zeros(2), np.array(["a", "b"])), None, "x1 must be of real numbers, got <U1"),
        ((np.zeros(2, object),), None, "x must be of real numbers, got object"),
        ((np.zeros((2, 1)), np.zeros((3, 1))), None, r"x1 must be float64 of shape \(n, 1\), here with n = 2"),
        ((np.zeros(2),), np.zeros(3), r"y must be float64 of shape \(n,\), here with n = 2, got float64 \(3,\)"),
        ((np.array([0, np.nan]),), None, "x has values that are not finite"),
        ((np.zeros(2),), np.array([0, np.inf]), "y has values that are not finite"),
        ((np.zeros(1),), np.array([2**63], np.uint64), "y has 9223372036854775808, which is too large for int64"),
    ],
)
def test_arrays_that_are_no_examples_are_refused(x: Any, y: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"here: {message}"):
        Signature.of(x, y, "here")


def test_other_arrays_than_the_signatures_are_named() -> None:
    one = Signature.labelled((2,), 3)
    with pytest.raises(InputError, match="here: arrays must be x, y, got x0, x1"):
        one.check((np.zeros((1, 2)), np.zeros((1, 2))), None, "here")
    with pytest.raises(InputError, match="here: arrays must be x, y, got x"):
        one.check((np.zeros((1, 2), np.float32),), None, "here")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": []}, "x must be a list with a dtype and a shape for each input"),
        ({"x": {"dtype": "float32"}}, "x must be a list"),
        ({"x": [3]}, "x 0 must have a dtype and a shape, got 3"),
        ({"x": [{"dtype": "object", "shape": []}]}, "dtype of x 0 must be one of bool, int8, .*got 'object'"),
        ({"x": [{"dtype": [], "shape": []}]}, r"dtype of x 0 must be one of .*got \[\]"),
        ({"x": [{"dtype": [["float32"]], "shape": []}]}, "dtype of x 0 must be one of"),
        ({"x": [{"dtype": "float32"}]}, "shape must be whole numbers of at least 1, got None"),
        ({"x": [{"dtype": "float32", "shape": [0]}]}, "shape must be whole numbers of at least 1"),
        ({"y": 3}, "y must have a dtype and a shape, got 3"),
        ({"y": {"dtype": "int8", "shape": []}}, "dtype of y must be one of bool, float16, .*int64, got int8"),
        ({"y": {"dtype": "float32", "shape": [], "classes": 3}}, "y has classes, so it must be a single int64"),
        ({"y": {"dtype": "int64", "shape": [2], "classes": 3}}, "y has classes, so it must be a single int64"),
        ({"y": {"dtype": "int64", "shape": [], "classes": 0}}, "classes must be whole numbers of at least 1"),
    ],
)
def test_a_wrong_signature_in_a_manifest_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({**TWO, **changes}))
    with pytest.raises(InputError, match=rf"manifest\.json: {message}"):
        manifest.read(tmp_path)


def test_a_manifest_must_say_that_there_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(TWO))
    assert manifest.read(tmp_path)[0].y is None
    (tmp_path / "manifest.json").write_text(json.dumps({key: value for key, value in TWO.items() if key != "y"}))
    with pytest.raises(InputError, match="y must have a dtype and a shape, got None"):
        manifest.read(tmp_path)
