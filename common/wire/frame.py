"""A message as bytes: a small head in JSON, then the data of its arrays, one after the other and untouched.

Flower sends a message as a tree of hashed parts, which costs hashing and a request for each part. Here the head says
what the records are and how long each array is. ``Packer`` refers to the arrays' data where it lies, so that a model
for a thousand nodes is in memory once.

    4 bytes   MAGIC
    4 bytes   length of the head, big-endian
    head      {"records": [[name, kind, content], ...], ...fields}  or  {"error": [code, reason], ...fields}
    data      of all arrays, in the order of the head

The content of an ArrayRecord is a list of [name, dtype, shape, stype, bytes of data]; that of the other two is an
object, in which bytes are written as {"bytes": base64}.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from perennial.common.command.errors import shown

MAGIC = b"PRF1"
_START = struct.Struct(">4sI")
_BYTES = "bytes"
_ARRAYS, _METRICS, _CONFIG = "arrays", "metrics", "config"
# Of whole numbers, as in Flower's own records.
_LEAST, _MOST = -(2**63), 2**63 - 1


class FrameError(ValueError):
    """Bytes that are no message, or a message that cannot be bytes."""


class Packer:
    """Turns messages into pieces of bytes; a record that many messages share is described once.

    Keeps what it has packed alive: make one for the messages of a round, and drop it after them.
    """

    def __init__(self) -> None:
        # By identity, with the record itself, lest another one gets its address.
        self._packed: dict[int, tuple[ArrayRecord, str, list[bytes]]] = {}

    def pack(self, fields: Mapping[str, object], content: RecordDict | Error) -> list[bytes]:
        """Return the message's bytes in pieces, of which all but the first are the arrays' own data."""
        if isinstance(content, Error):
            return [_start(_json({**fields, "error": [content.code, content.reason]}))]
        texts, pieces = [], []
        for name, record in content.items():
            text, data = self._arrays(record) if isinstance(record, ArrayRecord) else (_values(record), [])
            kind = _ARRAYS if isinstance(record, ArrayRecord) else _CONFIG
            kind = _METRICS if isinstance(record, MetricRecord) else kind
            texts.append(f'[{_json(name)},"{kind}",{text}]')
            pieces += data
        said = _json(dict(fields))[1:-1]
        return [_start("{" + (said + "," if said else "") + f'"records":[{",".join(texts)}]' + "}"), *pieces]

    def _arrays(self, record: ArrayRecord) -> tuple[str, list[bytes]]:
        if id(record) not in self._packed:
            rows = [[name, a.dtype, list(a.shape), a.stype, len(a.data)] for name, a in record.items()]
            self._packed[id(record)] = record, _json(rows), [a.data for a in record.values() if a.data]
        return self._packed[id(record)][1:]


def unpack(body: bytes, most_head: int) -> tuple[dict[str, Any], RecordDict | Error]:
    """Return the fields and the content of a message; ``FrameError`` for anything else, whatever it is.

    most_head: bytes of the head, which is parsed and then takes more memory than that.
    """
    if len(body) < _START.size:
        raise FrameError("a message is cut off")
    magic, length = _START.unpack_from(body)
    if magic != MAGIC:
        raise FrameError("no message begins like this")
    if length > most_head or _START.size + length > len(body):
        raise FrameError(f"the head of a message has {length} bytes, at most {min(most_head, len(body))}")
    try:
        head = json.loads(body[_START.size : _START.size + length])
    except (ValueError, RecursionError) as error:
        raise FrameError("the head of a message is no JSON") from error
    if not isinstance(head, dict):
        raise FrameError("the head of a message is no object")
    try:
        return head, _content(head, memoryview(body)[_START.size + length :])
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise error if isinstance(error, FrameError) else FrameError(f"a record is wrong: {error}"[:200]) from error


def _content(head: dict[str, Any], data: memoryview) -> RecordDict | Error:
    """Take the content out of ``head`` and ``data``, which must have nothing else."""
    if "error" in head:
        code, reason = head.pop("error")
        if type(code) is not int or not isinstance(reason, str | None) or data:
            _refuse("an error is a code and a reason", code)
        return Error(code, reason)
    records, position = RecordDict(), 0
    for name, kind, described in head.pop("records", None) or ():
        if name in records:
            _refuse("a record is there twice", name)
        if kind == _ARRAYS:
            records[name], position = _read_arrays(described, data, position)
        elif kind in (_CONFIG, _METRICS):
            values = {key: _read(value) for key, value in described.items()}
            records[name] = ConfigRecord(values) if kind == _CONFIG else MetricRecord(values)
        else:
            _refuse("no kind of record", kind)
    if position != len(data):
        _refuse("bytes beyond the last array", len(data) - position)
    return records


def _read_arrays(rows: Sequence[Sequence[Any]], data: memoryview, position: int) -> tuple[ArrayRecord, int]:
    arrays: dict[str, Array] = {}
    for name, dtype, shape, stype, size in rows:
        if type(size) is not int or not 0 <= size <= len(data) - position:
            _refuse("an array is cut off", size)
        if not isinstance(name, str) or name in arrays:
            _refuse("an array has no name of its own", name)
        arrays[name] = Array(dtype, _shape(shape), stype, bytes(data[position : position + size]))
        position += size
    return ArrayRecord(arrays, keep_input=False), position


def _shape(sides: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(sides, list) or any(type(side) is not int or not 0 <= side <= _MOST for side in sides):
        _refuse("a shape has whole numbers", sides)
    return tuple(sides)


def _start(head: str) -> bytes:
    text = head.encode()
    return _START.pack(MAGIC, len(text)) + text


def _values(record: Mapping[str, Any]) -> str:
    return _json({key: _written(value) for key, value in record.items()})


def _written(value: Any) -> Any:
    """Return a value as JSON can have it; bytes apart, Flower's values are JSON's."""
    if isinstance(value, bytes):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return {_BYTES: [b64encode(one).decode() for one in value]}
    for one in value if isinstance(value, list) else (value,):
        if isinstance(one, int) and not _LEAST <= one <= _MOST:
            _refuse("a whole number has at most 64 bits", one)
    return value


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        coded = value[_BYTES] if set(value) == {_BYTES} else _refuse("no value is an object", value)
        read = [b64decode(one, validate=True) for one in (coded if isinstance(coded, list) else [coded])]
        return read if isinstance(coded, list) else read[0]
    for one in value if isinstance(value, list) else (value,):
        if type(one) is int and not _LEAST <= one <= _MOST:
            _refuse("a whole number has at most 64 bits", one)
    return value


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _refuse(problem: str, value: object) -> NoReturn:
    raise FrameError(f"{problem}: {shown(value)}")
