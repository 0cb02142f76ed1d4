"""Messages as bytes: whatever Flower can say comes back as it was, and whatever else comes is a FrameError."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.wire.frame import MAGIC, FrameError, Packer, unpack

MOST = 2**20
whole = st.integers(-(2**63), 2**63 - 1)
scalars = (st.booleans(), whole, st.floats(), st.text(), st.binary())
config_values = st.one_of(*scalars, *(st.lists(one) for one in scalars))
metric_values = st.one_of(whole, st.floats(), st.lists(whole), st.lists(st.floats()))
arrays = st.builds(
    Array, dtype=st.text(), shape=st.lists(st.integers(0, 2**40)).map(tuple), stype=st.text(), data=st.binary()
)
records = st.one_of(
    st.dictionaries(st.text(), arrays).map(ArrayRecord),
    st.dictionaries(st.text(), metric_values).map(MetricRecord),
    st.dictionaries(st.text(), config_values).map(ConfigRecord),
)
contents = st.dictionaries(st.text(), records).map(RecordDict)


def joined(content: RecordDict | Error, **fields: object) -> bytes:
    return b"".join(Packer().pack(fields, content))


def plain(content: RecordDict) -> list[Any]:
    """Return records as lists, in which NaN equals NaN, 1 is not 1.0 and True is not 1."""
    return [
        (name, type(record).__name__, [(key, repr(value)) for key, value in record.items()])
        for name, record in content.items()
    ]


@given(contents, st.dictionaries(st.text().filter(lambda key: key not in ("records", "error")), whole))
def test_whatever_flower_can_say_comes_back_as_it_was(content: RecordDict, fields: dict[str, int]) -> None:
    said, read = unpack(joined(content, **fields), MOST)
    assert isinstance(read, RecordDict)
    assert plain(read) == plain(content)
    assert said == fields


@pytest.mark.parametrize("reason", [None, "", "ZeroDivisionError: no data\n" * 3])
def test_an_error_comes_back_as_it_was(reason: str | None) -> None:
    fields, error = unpack(joined(Error(2, reason), id="x"), MOST)
    assert isinstance(error, Error)
    assert (error.code, error.reason, fields) == (2, reason, {"id": "x"})


def test_numbers_that_are_not_finite_come_back() -> None:
    record = MetricRecord({"a": math.inf, "b": -math.inf, "c": [math.nan, -0.0]})
    _, read = unpack(joined(RecordDict({"m": record})), MOST)
    assert isinstance(read, RecordDict)
    assert repr(dict(read["m"])) == repr(dict(record))


def test_a_model_that_many_messages_share_is_in_memory_once() -> None:
    model = ArrayRecord({"w": Array(np.arange(1000, dtype=np.float32))})
    packer = Packer()
    messages = [packer.pack({"id": node}, RecordDict({"mixed": model})) for node in range(3)]
    assert all(pieces[1] is model["w"].data for pieces in messages)
    assert [unpack(b"".join(pieces), MOST)[0]["id"] for pieces in messages] == [0, 1, 2]


def test_a_packer_does_not_confuse_records_that_are_gone() -> None:
    packer = Packer()
    for value in range(50):
        content = RecordDict({"m": ArrayRecord({"w": Array(np.full(3, value, np.int64))})})
        _, read = unpack(b"".join(packer.pack({}, content)), MOST)
        assert isinstance(read, RecordDict)
        assert read["m"]["w"].numpy()[0] == value
        del content


def test_a_number_that_flower_cannot_send_is_refused_here_too() -> None:
    with pytest.raises(FrameError, match="64 bits"):
        joined(RecordDict({"c": ConfigRecord({"a": 2**63})}))


@given(contents, st.data())
def test_a_message_that_is_cut_off_is_an_error(content: RecordDict, data: st.DataObject) -> None:
    body = joined(content)
    with pytest.raises(FrameError):
        unpack(body[: data.draw(st.integers(0, len(body) - 1))], MOST)


@given(st.binary())
def test_bytes_that_are_no_message_are_an_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(body, MOST)


def head(text: str, data: bytes = b"") -> bytes:
    return struct.pack(">4sI", MAGIC, len(text.encode())) + text.encode() + data


json_values = st.recursive(
    st.none() | st.booleans() | whole | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
rows = st.lists(st.tuples(json_values, st.sampled_from(["arrays", "metrics", "config", "x"]), json_values))


@given(st.fixed_dictionaries({}, optional={"records": rows | json_values, "error": json_values}), st.binary())
def test_a_head_that_says_something_else_is_an_error_or_a_message(said: dict[str, Any], data: bytes) -> None:
    try:
        _, content = unpack(head(json.dumps(said), data), MOST)
    except FrameError:
        return
    assert isinstance(content, RecordDict | Error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "no JSON"),
        ("1", "no object"),
        ('{"records":[["a","arrays",[["w","f",[1],"s",5]]]]}', "cut off"),
        ('{"records":[["a","arrays",[["w","f",[1],"s",-1]]]]}', "cut off"),
        ('{"records":[["a","arrays",[["w","f",[-1],"s",0]]]]}', "shape"),
        ('{"records":[["a","arrays",[["w","f",[true],"s",0]]]]}', "shape"),
        ('{"records":[["a","arrays",[["w","f",[],"s",0],["w","f",[],"s",0]]]]}', "no name of its own"),
        ('{"records":[["a","config",{}],["a","config",{}]]}', "twice"),
        ('{"records":[["a","config",{"k":{"bytes":"?"}}]]}', "wrong"),
        ('{"records":[["a","config",{"k":{"other":""}}]]}', "no value is an object"),
        ('{"records":[["a","metrics",{"k":"text"}]]}', "wrong"),
        ('{"records":[["a","metrics",{"k":9223372036854775808}]]}', "64 bits"),
        ('{"records":[]}', "beyond the last array"),
        ('{"error":[1,"x"]}', "code and a reason"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        unpack(head(text, b"data"), MOST)


def test_a_head_that_is_too_long_is_not_parsed() -> None:
    body = joined(RecordDict({"c": ConfigRecord({"a": "x" * 1000})}))
    with pytest.raises(FrameError, match="at most 100"):
        unpack(body, 100)
