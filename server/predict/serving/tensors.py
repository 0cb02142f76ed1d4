"""Requests and answers of the Open Inference Protocol, version 2: JSON, and tensors as bytes behind it.

A body is a JSON object; with the header ``Inference-Header-Content-Length`` the object has that many bytes, and the
tensors that say ``binary_data_size`` follow it one after the other, as Triton's clients send them.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import prod
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from perennial.common.command.errors import shown
from perennial.common.data.examples import ArrayType, Inputs, Signature, x_names
from perennial.server.link.fleet_keys import Refusal

HEADER = "inference-header-content-length"
DTYPES = {"BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
          "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32",
          "FP64": "float64"}  # fmt: skip
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
_MOST_TEXT = 200


@dataclass(frozen=True)
class Asked:
    """An inference request. wanted: names of outputs, and whether each comes as bytes; empty: all as ``binary``."""

    id: str | None
    at: datetime | None
    block: str | int | None
    tensors: Mapping[str, Mapping[str, Any]]
    binary: bool
    wanted: Mapping[str, bool]
    raw: Mapping[str, memoryview]


def read_request(body: bytes, header: str | None) -> Asked:
    """Return the request that a body is. Raises ``Refusal``."""
    end = _header_length(body, header)
    said = _object(body, end)
    parameters = _mapping(said.get("parameters", {}), "parameters")
    inputs = said.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise Refusal(400, "inputs must be a list with each of the model's tensors")
    tensors = {_text(_mapping(one, "an input").get("name"), "the name of an input"): one for one in inputs}
    if len(tensors) != len(inputs):
        raise Refusal(400, "an input has a name twice")
    at, block = _choice(parameters)
    binary = _flag(parameters, "binary_data_output")
    outputs = said.get("outputs") or []
    if not isinstance(outputs, list):
        raise Refusal(400, "outputs must be a list of what is wanted")
    wanted = {}
    for one in outputs:
        name = _text(_mapping(one, "an output").get("name"), "the name of an output")
        wanted[name] = _flag(_mapping(one.get("parameters", {}), "parameters of an output"), "binary_data", binary)
    identity = said.get("id")
    if identity is not None:
        _text(identity, "id")
    return Asked(identity, at, block, tensors, binary, wanted, _raw(inputs, memoryview(body)[end:]))


def examples(asked: Asked, signature: Signature, most: int) -> Inputs:
    """Return the inputs of a request as arrays of ``signature``, at most ``most`` examples. Raises ``Refusal``."""
    names = x_names(len(signature.x))
    if set(asked.tensors) != set(names):
        raise Refusal(400, f"inputs must be {', '.join(names)}, got {', '.join(map(shown, asked.tensors))}")
    count = _shape(asked.tensors[names[0]], names[0], signature.x[0])[0]
    if not 1 <= count <= most:
        raise Refusal(400, f"a request has from 1 to {most} examples, got {count}; send several")
    found = []
    for name, kind in zip(names, signature.x, strict=True):
        tensor = asked.tensors[name]
        shape = _shape(tensor, name, kind)
        if shape[0] != count:
            raise Refusal(400, f"input {name} has {shape[0]} examples, {names[0]} has {count}")
        dtype = DTYPES.get(tensor["datatype"]) if isinstance(tensor.get("datatype"), str) else None
        if dtype is None or dtype not in kind.dtypes:
            wanted = " or ".join(DATATYPES[one] for one in kind.dtypes)
            raise Refusal(400, f"input {name} must be {wanted}, got {shown(tensor.get('datatype'))}")
        if name in asked.raw:
            values = _from_bytes(asked.raw[name], np.dtype(dtype), name, prod(shape))
        else:
            values = _from_json(tensor.get("data"), np.dtype(dtype), name, prod(shape))
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise Refusal(400, f"input {name} has values that are not finite")
        found.append(values.reshape(shape))
    return tuple(found)


def answer(head: dict[str, Any], asked: Asked, outputs: Mapping[str, NDArray[Any]]) -> tuple[bytes, int | None]:
    """Return the body that answers a request and, if tensors follow the JSON, its length. Raises ``Refusal``."""
    if unknown := set(asked.wanted) - set(outputs):
        raise Refusal(400, f"there is no output {shown(min(unknown))}; the outputs are: {', '.join(outputs)}")
    tensors, pieces = [], []
    for name, binary in (asked.wanted or dict.fromkeys(outputs, asked.binary)).items():
        values = np.ascontiguousarray(outputs[name])
        tensor: dict[str, Any] = {"name": name, "datatype": DATATYPES[values.dtype.name], "shape": values.shape}
        if binary:
            content = values.tobytes()
            tensor["parameters"] = {"binary_data_size": len(content)}
            pieces.append(content)
        else:
            # orjson writes a half as a number too, and NumPy's bool.
            tensor["data"] = values.ravel()
        tensors.append(tensor)
    if asked.id is not None:
        head = {**head, "id": asked.id}
    text = orjson.dumps({**head, "outputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
    return (text, None) if not pieces else (b"".join((text, *pieces)), len(text))


def read_time(text: object) -> datetime:
    """Return the time that a text is, which must have a zone. Raises ValueError with what to do."""
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) and len(text) <= _MOST_TEXT else None
    except ValueError:
        at = None
    if at is None or at.utcoffset() is None or not 1900 <= at.year <= 2900:
        raise ValueError(f"at must be a time with a zone, as 2026-03-28T12:00+01:00, got {shown(text)}")
    return at


# --- Reading ----------------------------------------------------------------------------------------------------------


def _header_length(body: bytes, header: str | None) -> int:
    if header is None:
        return len(body)
    if not (header.isascii() and header.isdigit() and len(header) < 16 and int(header) <= len(body)):
        raise Refusal(400, f"{HEADER} must be the bytes of the JSON in a body of {len(body)}, got {shown(header)}")
    return int(header)


def _object(body: bytes, end: int) -> dict[str, Any]:
    try:
        said = orjson.loads(memoryview(body)[:end])
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the body is no JSON: {str(error)[:160]}") from error
    return _mapping(said, "the body")


def _mapping(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"{what} must be a JSON object, got {shown(value)}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise Refusal(400, f"{what} must be a text of at most {_MOST_TEXT} characters, got {shown(value)}")
    return value


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise Refusal(400, f"{name} must be true or false, got {shown(value)}")
    return value


def _choice(parameters: Mapping[str, Any]) -> tuple[datetime | None, str | int | None]:
    """Return the time or the block that a request asks for."""
    block, text = parameters.get("block"), parameters.get("at")
    if block is not None and text is not None:
        raise Refusal(400, "give at or block, not both: a time says which block it is")
    try:
        return None if text is None else read_time(text), block
    except ValueError as error:
        raise Refusal(400, str(error)) from error


def _raw(inputs: Sequence[Mapping[str, Any]], tail: memoryview) -> dict[str, memoryview]:
    """Return the bytes of the inputs that have some behind the JSON; all of them must belong to one."""
    found, start = {}, 0
    for one in inputs:
        size = _mapping(one.get("parameters", {}), "parameters of an input").get("binary_data_size")
        if size is None:
            continue
        if type(size) is not int or size < 0 or start + size > len(tail):
            raise Refusal(400, f"binary_data_size of input {one['name']} must be bytes behind the JSON, which has "
                               f"{len(tail)}, got {shown(size)}")  # fmt: skip
        found[one["name"]] = tail[start : start + size]
        start += size
    if start != len(tail):
        raise Refusal(400, f"{len(tail) - start} bytes behind the JSON belong to no input")
    return found


def _shape(tensor: Mapping[str, Any], name: str, kind: ArrayType) -> tuple[int, ...]:
    shape = tensor.get("shape")
    fits = isinstance(shape, list) and all(type(side) is int and 0 <= side < 2**31 for side in shape)
    if not isinstance(shape, list) or not fits or tuple(shape[1:]) != kind.shape or not shape:
        wanted = ", ".join(map(str, ("n", *kind.shape)))
        raise Refusal(400, f"shape of input {name} must be [{wanted}], got {shown(shape)}")
    return tuple(shape)


def _from_bytes(content: memoryview, dtype: np.dtype[Any], name: str, count: int) -> NDArray[Any]:
    if len(content) != count * dtype.itemsize:
        raise Refusal(400, f"input {name} needs {count * dtype.itemsize} bytes by its shape, got {len(content)}")
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(content, np.uint8) != 0)
    # A copy, since a network may write to its inputs.
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype)


def _from_json(data: object, dtype: np.dtype[Any], name: str, count: int) -> NDArray[Any]:
    if not isinstance(data, list):
        raise Refusal(400, f"input {name} needs data, a list of numbers, or binary_data_size; got {shown(data)}")
    values = _numbers(data, dtype.kind)
    if values is None or values.dtype.kind not in {"f": "iuf", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]:
        raise Refusal(400, f"data of input {name} must be {DATATYPES[dtype.name]} and nothing else")
    if values.size != count:
        raise Refusal(400, f"input {name} needs {count} numbers by its shape, got {values.size}")
    if dtype.kind in "iu" and (values.min() < np.iinfo(dtype).min or values.max() > np.iinfo(dtype).max):
        raise Refusal(400, f"data of input {name} does not fit {DATATYPES[dtype.name]}")
    with np.errstate(over="ignore"):
        # What is too large becomes infinite, and is refused as such.
        return values.astype(dtype).ravel()


def _numbers(data: list[Any], kind: str) -> NDArray[Any] | None:
    """Return a list of numbers, flat or nested, as an array; None if it is something else."""
    if kind == "f":
        try:
            # Four times as quick as NumPy, which looks at every number before it takes the first.
            return np.asarray(array("d", data))
        except (TypeError, OverflowError):
            pass  # nested, or no numbers: NumPy tells
    try:
        return np.asarray(data)
    except (ValueError, OverflowError):
        return None
