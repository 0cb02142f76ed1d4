"""Reading .npz files that may be damaged or hostile."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.common.data import npz


@pytest.fixture
def good(tmp_path: Path) -> Path:
    np.savez(tmp_path / "good.npz", x=np.arange(12, dtype=np.float32).reshape(3, 4), y=np.array([1, 2, 3]))
    return tmp_path / "good.npz"


def member(path: Path, content: bytes, name: str = "x.npy") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_come_back_as_they_were_written(tmp_path: Path, mapped: bool, compressed: bool) -> None:
    x, y = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.asfortranarray(np.arange(6.0).reshape(2, 3))
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", x=x, y=y)
    found = npz.read(tmp_path / "a.npz", ("x", "y"), mapped=mapped)
    assert found["x"].dtype == np.uint8
    assert (found["x"] == x).all()
    assert (found["y"] == y).all()
    assert isinstance(found["x"], np.memmap) == (mapped and not compressed)


def test_memory_maps_cannot_be_written(good: Path) -> None:
    found = npz.read(good, ("x",), mapped=True)["x"]
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 1


def test_empty_arrays_can_be_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((0, 3), np.uint8))
    assert npz.read(tmp_path / "a.npz", ("x",), mapped=True)["x"].shape == (0, 3)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        npz.read(tmp_path / "none.npz", ("x",))


def test_a_missing_array_is_named(good: Path) -> None:
    with pytest.raises(InputError, match=r"good\.npz cannot be read as \.npz with arrays z: no array.*z"):
        npz.read(good, ("z",))


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        npz.read(tmp_path, ("x",))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="are not data"):
        npz.read(tmp_path / "a.npz", ("x",))
    with pytest.raises(InputError, match="cannot be read"):
        npz.read(member(tmp_path / "b.npz", pickle.dumps([1])), ("x",))


@pytest.mark.parametrize("shape", ["(1000000000000, 1000000)", "(-1, 4)", "(3,)", "(2**70,)"])
def test_a_header_that_lies_about_the_size_is_refused_before_memory_is_taken(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(118) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16)
    for mapped in (False, True):
        with pytest.raises(InputError, match="cannot be read"):
            npz.read(member(tmp_path / "a.npz", content), ("x",), mapped=mapped)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_damage_is_an_input_error_or_harmless(good: Path, data: st.DataObject) -> None:
    content = bytearray(good.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = good.with_name("damaged.npz")
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    for mapped in (False, True):
        try:
            npz.read(damaged, ("x", "y"), mapped=mapped)
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017
