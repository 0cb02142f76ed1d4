"""A model on the wire: named .npy arrays, written and read without a copy more than needed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from perennial.common.command.errors import RunError
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import FLOAT, HALF, Layout
from perennial.common.wire.protocol import ProtocolError

_LARGEST_HALF = float(np.finfo(HALF).max)


def encode(vector: Vector, layout: Layout, wire: str = FLOAT) -> ArrayRecord:
    """Return a model as the named arrays of its layout; wire: what its arrays of float32 travel in."""
    arrays = {name: _little(_narrowed(array, wire, name)) for name, array in layout.unflatten(vector).items()}
    return array_record(
        (name, Array(array.dtype.name, array.shape, "numpy.ndarray", _npy(array))) for name, array in arrays.items()
    )


def array_record(arrays: Iterable[tuple[str, Array]]) -> ArrayRecord:
    """Return a record of these very arrays; ``ArrayRecord(…)`` would make each of them anew, which takes longer."""
    record = ArrayRecord()
    for name, array in arrays:
        record[name] = array
    return record


def size_of(record: ArrayRecord) -> int:
    """Return the bytes that the model takes on the wire."""
    return sum(len(array.data) for array in record.values())


def decode(record: ArrayRecord, layout: Layout, chain: str, wire: str = FLOAT) -> Vector:
    """Return the vector of a model with the names, shapes and dtypes of ``layout`` and finite values.

    wire: what its arrays of float32 have travelled in.
    """
    if set(record) != set(layout.names):
        odd = sorted(set(record) ^ set(layout.names))[0]
        raise ProtocolError(
            f"{chain}: array {odd[:80]!r} is {'missing' if odd in layout.names else 'not of this model'}"
        )
    vector = np.empty(layout.size, np.float32)
    for name, target in layout.views(vector).items():
        kind = wire if layout.dtype_of[name] == FLOAT else layout.dtype_of[name]
        target[...] = _decode_array(record[name], target.shape, kind, f"{chain}: {name}")
    if not np.isfinite(vector).all():
        raise ProtocolError(f"{chain}: the model has values that are not finite")
    return vector


def _npy(array: NDArray[Any]) -> bytes:
    return _npy_header(array.dtype.str, array.shape) + array.tobytes()


def _narrowed(array: NDArray[Any], wire: str, name: str) -> NDArray[Any]:
    if wire == FLOAT or array.dtype != FLOAT:
        return array
    # What is not finite is refused by whoever reads it.
    if np.abs(array).max(initial=0.0) > _LARGEST_HALF:
        raise RunError(f"{name} has a value beyond {_LARGEST_HALF:g}, the largest of float16; use float32 on the wire")
    return array.astype(wire)


def _little(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _decode_array(array: Array, shape: tuple[int, ...], kind: str, where: str) -> NDArray[Any]:
    """Read .npy bytes in place; the size is checked before anything is believed."""
    if array.stype != "numpy.ndarray" or array.dtype != kind or tuple(array.shape) != shape:
        got = f"{array.stype} {array.dtype} {tuple(array.shape)}"[:120]
        raise ProtocolError(f"{where} must be numpy {kind} {shape}, got {got}")
    expected = np.dtype(kind).newbyteorder("<")
    header = _npy_header(expected.str, shape)
    if len(array.data) == len(header) + expected.itemsize * math.prod(shape) and array.data.startswith(header):
        return np.frombuffer(array.data, expected, offset=len(header)).reshape(shape)
    try:
        stream = BytesIO(array.data)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("not .npy version 1.0")
        written, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if written != shape or fortran or dtype != expected:
            raise ValueError(f"its data is {dtype} {written}")
        return np.frombuffer(array.data, expected, math.prod(shape), stream.tell()).reshape(shape)
    except Exception as error:  # the header is a Python literal from outside: its parser has many ways to fail
        raise ProtocolError(f"{where} cannot be read: {str(error)[:120]}") from error


def as_numpy(array: Array) -> NDArray[Any]:
    """Return what ``array.numpy()`` does, read-only: NumPy itself spends most of the time in parsing the header."""
    if array.stype == "numpy.ndarray" and array.dtype in _PLAIN:
        dtype = np.dtype(array.dtype)
        header = _npy_header(dtype.str, tuple(array.shape))
        if array.data.startswith(header) and len(array.data) == len(header) + dtype.itemsize * math.prod(array.shape):
            return np.frombuffer(array.data, dtype, offset=len(header)).reshape(array.shape)
    return array.numpy()


def as_array(array: NDArray[Any]) -> Array:
    """Return what ``Array(array)`` does."""
    if array.dtype.name not in _PLAIN or not array.flags.c_contiguous or not array.dtype.isnative:
        return Array(array)
    data = _npy_header(array.dtype.str, array.shape) + array.tobytes()
    return Array(array.dtype.name, array.shape, "numpy.ndarray", data)


# What the header that NumPy writes is known of.
_PLAIN = frozenset({"float16", "float32", "float64", "int32", "int64", "uint8", "bool"})


@lru_cache(maxsize=1024)
def _npy_header(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return what NumPy writes before the data of an array in C order."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue()
