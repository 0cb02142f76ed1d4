"""The wire protocol: what is written is read, and what is malformed is a ProtocolError that says what."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.command.errors import RunError
from perennial.common.wire.arrays import decode, encode, size_of
from perennial.common.wire.layout import HALF, Layout
from perennial.common.wire.orders import Order, read_models, read_order, write_order
from perennial.common.wire.protocol import Identity, ProtocolError, read_identity, write_identity
from perennial.common.wire.updates import Losses, Update, read_losses, read_update, write_losses, write_update

LAYOUT = Layout(("w", "b"), ((2, 3), (2,)))
CHAINS = ("mixed", "separate")
ORDER = Order(5, 1, 2, (3, 4, 9), True)
VECTOR = np.arange(8, dtype=np.float32)

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6, unique=True).map(tuple)
loss_values = st.floats(0, 1e30)
orders = st.builds(Order, st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), ids, st.booleans())
vectors = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=8).map(
    lambda values: np.array(values, np.float32)
)


def encoded(*chains: str) -> dict[str, ArrayRecord]:
    return {chain: encode(VECTOR, LAYOUT) for chain in chains}


def an_update() -> RecordDict:
    losses = Losses(3, 30, 0.5, 0.6)
    return write_update(Update(dict.fromkeys(CHAINS, VECTOR), dict.fromkeys(CHAINS, 0.7), losses), LAYOUT)


# --- Round trips ------------------------------------------------------------------------------------------------------


@given(ids, st.integers(1, 2**40))
def test_identities_round_trip(clients: tuple[int, ...], blocks: int) -> None:
    identity = Identity(clients, blocks)
    assert read_identity(write_identity(identity)) == identity


@given(orders)
def test_orders_round_trip(order: Order) -> None:
    assert read_order(write_order(order, encoded("mixed"))) == order


@given(vectors, vectors, loss_values, loss_values, st.integers(1, 3), st.booleans())
def test_updates_round_trip(mixed: Any, separate: Any, one: float, two: float, clients: int, judged: bool) -> None:
    models = {"mixed": mixed, "separate": separate}
    losses = Losses(clients, 30, *((one, two) if judged else ()))
    content = write_update(Update(models, {"mixed": one, "separate": two}, losses), LAYOUT)
    order = Order(1, 0, 0, (3, 4, 9), judged)
    found = read_update(content, order, LAYOUT, CHAINS)
    assert all((found.models[chain] == models[chain]).all() for chain in CHAINS)
    assert found.train_losses == {"mixed": one, "separate": two}
    assert (found.losses == losses) if judged else math.isnan(found.losses.mixed)


@given(loss_values, loss_values, st.integers(1, 3))
def test_losses_round_trip(mixed: float, separate: float, clients: int) -> None:
    losses = Losses(clients, 99, mixed, separate)
    assert read_losses(write_losses(losses), ORDER) == losses


def test_models_of_an_order_are_read_by_chain() -> None:
    assert list(read_models(write_order(ORDER, encoded("mixed")), LAYOUT)) == ["mixed"]
    both = read_models(write_order(ORDER, encoded(*CHAINS)), LAYOUT)
    assert list(both) == ["mixed", "separate"]
    assert (both["separate"] == VECTOR).all()


def test_names_on_the_wire_are_the_designs() -> None:
    content = write_order(ORDER, encoded(*CHAINS))
    assert set(content) == {"mixed", "separate", "order"}
    assert set(content["order"]) == {"server-round", "cycle", "block", "clients", "report-loss"}
    update = an_update()
    assert set(update) == {"mixed", "separate", "update"}
    assert set(update["update"]) == {
        "num-clients", "num-examples", "train-loss-mixed", "train-loss-separate", "loss-mixed", "loss-separate",
    }  # fmt: skip
    assert set(write_identity(Identity((1,), 1))["node"]) == {"protocol", "clients", "blocks"}
    assert set(write_losses(Losses(1, 1, 0.1, 0.2))["losses"]) == {
        "num-clients", "num-examples", "loss-mixed", "loss-separate",
    }  # fmt: skip


def test_the_size_is_that_of_the_arrays_with_their_headers() -> None:
    assert size_of(encode(VECTOR, LAYOUT)) == 8 * 4 + 2 * 128


# --- float16 ----------------------------------------------------------------------------------------------------------


def test_in_float16_a_model_takes_half_the_bytes_and_whole_numbers_stay_as_they_are() -> None:
    layout = Layout(("w", "seen"), ((400,), ()), ("float32", "int64"))
    vector = np.random.default_rng(0).normal(size=401).astype(np.float32)
    vector[-1] = 70_001
    record = encode(vector, layout, HALF)
    assert [array.dtype for array in record.values()] == [HALF, "int64"]
    assert size_of(encode(vector, layout)) - size_of(record) == 800
    found = decode(record, layout, "mixed", HALF)
    np.testing.assert_allclose(found[:-1], vector[:-1], rtol=2.0**-11)
    assert found[-1] == 70_001


def test_an_order_in_float16_is_read_as_such() -> None:
    content = write_order(ORDER, {"mixed": encode(VECTOR, LAYOUT, HALF)})
    assert (read_models(content, LAYOUT, HALF)["mixed"] == VECTOR).all()
    with pytest.raises(ProtocolError, match=r"mixed: w must be numpy float32 \(2, 3\), got numpy.ndarray float16"):
        read_models(content, LAYOUT)


def test_an_update_in_float16_has_the_differences_which_lose_little() -> None:
    received = {"mixed": VECTOR + np.float32(1000)}
    trained = {"mixed": received["mixed"] + np.linspace(1e-3, 2e-3, 8, dtype=np.float32)}
    content = write_update(Update(trained, {"mixed": 0.5}, Losses(1, 10)), LAYOUT, HALF, received)
    found = read_update(content, Order(1, 0, 0, (3,), False), LAYOUT, ["mixed"], HALF)
    # A float16 beside 1000 is off by up to 0.25.
    np.testing.assert_allclose(found.models["mixed"], trained["mixed"] - received["mixed"], rtol=2.0**-11)


def test_a_value_that_float16_does_not_have_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RunError, match="w has a value beyond 65504, the largest of float16; use float32 on the wire"):
        encode(VECTOR * 1e5, LAYOUT, HALF)


def test_what_is_not_finite_is_refused_by_who_reads_it_in_float16_too() -> None:
    record = encode(np.where(VECTOR == 3, np.float32("nan"), VECTOR), LAYOUT, HALF)
    with pytest.raises(ProtocolError, match="not finite"):
        decode(record, LAYOUT, "mixed", HALF)


# --- Malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "ConfigRecord 'node' is missing"),
        (MetricRecord({"protocol": 2}), "ConfigRecord 'node' is missing"),
        (ConfigRecord({"clients": [1], "blocks": 1}), "node speaks protocol None, this server 2"),
        (ConfigRecord({"protocol": 1, "clients": [1], "blocks": 1}), "node speaks protocol 1"),
        (ConfigRecord({"protocol": 2, "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 2, "clients": [], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 2, "clients": [-1], "blocks": 1}), "clients must be client ids from 0"),
        (ConfigRecord({"protocol": 2, "clients": [2**31], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 2, "clients": [1.0], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 2, "clients": ["a"], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 2, "clients": [True], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 2, "clients": [4, 4], "blocks": 1}), "clients has an id twice"),
        (ConfigRecord({"protocol": 2, "clients": [1], "blocks": 0}), r"blocks must be a whole number in \[1"),
        (ConfigRecord({"protocol": 2, "clients": [1], "blocks": 2.0}), "blocks must be a whole number"),
    ],
)
def test_a_malformed_identity_is_refused(record: Any, message: str) -> None:
    content = RecordDict({"node": record} if record is not None else {})
    with pytest.raises(ProtocolError, match=message):
        read_identity(content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server-round", 0), ("server-round", 1.0), ("server-round", "1"), ("cycle", -1), ("block", -1),
        ("block", 2**41), ("clients", []), ("clients", [1, 1]), ("report-loss", 1), ("report-loss", "true"),
    ],
)  # fmt: skip
def test_a_malformed_order_is_refused_by_key(key: str, value: Any) -> None:
    content = write_order(ORDER, encoded("mixed"))
    content["order"] = ConfigRecord({**content["order"], key: value})
    with pytest.raises(ProtocolError, match=key):
        read_order(content)


@pytest.mark.parametrize("key", ["server-round", "cycle", "block", "clients", "report-loss"])
def test_an_order_without_a_key_is_refused(key: str) -> None:
    content = write_order(ORDER, encoded("mixed"))
    content["order"] = ConfigRecord({name: value for name, value in content["order"].items() if name != key})
    with pytest.raises(ProtocolError, match=key):
        read_order(content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num-clients", 0), ("num-clients", 4), ("num-clients", 1.0), ("num-examples", 2), ("num-examples", 2**50),
        ("train-loss-mixed", math.nan), ("train-loss-separate", math.inf), ("loss-mixed", math.nan),
        ("loss-separate", -math.inf),
        ("loss-mixed", [0.1]), ("num-clients", None), ("train-loss-separate", None),
        ("loss-separate", None),
    ],
)  # fmt: skip
def test_malformed_metrics_are_refused_by_key(key: str, value: Any) -> None:
    content = an_update()
    kept = {name: old for name, old in content["update"].items() if name != key}
    content["update"] = MetricRecord(kept if value is None else {**kept, key: value})
    with pytest.raises(ProtocolError, match=key):
        read_update(content, ORDER, LAYOUT, CHAINS)


def test_losses_are_refused_as_updates_are() -> None:
    for record in ({"num-clients": 1, "num-examples": 1, "loss-mixed": 0.1}, {"num-clients": 9, "num-examples": 9}):
        with pytest.raises(ProtocolError, match=r"loss-separate|num-clients"):
            read_losses(RecordDict({"losses": MetricRecord(record)}), ORDER)
    with pytest.raises(ProtocolError, match="MetricRecord 'losses' is missing"):
        read_losses(RecordDict({"losses": ConfigRecord({"num-clients": 1})}), ORDER)


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (2,), stype: str = "numpy.ndarray") -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def npy(array: Any) -> bytes:
    return Array(np.asarray(array)).data


GOOD = npy(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Array(np.zeros(2)), "mixed: b must be numpy float32 .*float64"),
        (Array(np.zeros(3, np.float32)), r"mixed: b must be numpy float32 \(2,\), got numpy.ndarray float32 \(3,\)"),
        (Array(np.zeros((2, 1), np.float32)), "mixed: b must be"),
        (Array(np.array([1, math.nan], np.float32)), "mixed: the model has values that are not finite"),
        (Array(np.array([-math.inf, 1], np.float32)), "not finite"),
        (raw(GOOD, stype="pickle"), "mixed: b must be"),
        (raw(GOOD[:-1]), "mixed: b cannot be read"),
        (raw(b""), "mixed: b cannot be read"),
        (raw(b"not npy at all"), "mixed: b cannot be read"),
        (raw(npy(np.zeros(2))), "mixed: b cannot be read: its data is float64"),
        (raw(npy(np.zeros(1, np.float32))), "mixed: b cannot be read"),
        (raw(npy(np.zeros(2, ">f4"))), "mixed: b cannot be read"),
        (raw(b"\x93NUMPY\x01\x00\x76\x00" + b"(" * 118), "mixed: b cannot be read"),
        (raw(b"\x93NUMPY\x02\x00" + GOOD[8:]), "mixed: b cannot be read"),
    ],
)
def test_a_malformed_array_is_refused_by_chain_and_name(array: Array, message: str) -> None:
    record = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "b": array})
    with pytest.raises(ProtocolError, match=message):
        decode(record, LAYOUT, "mixed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("b"), "array 'b' is missing"),
        (lambda arrays: arrays.update(c=Array(np.zeros(1, np.float32))), "array 'c' is not of this model"),
        (lambda arrays: arrays.clear(), "array 'b' is missing"),
    ],
)
def test_missing_and_surplus_arrays_are_named(change: Callable[[dict[str, Array]], Any], message: str) -> None:
    arrays = dict(encode(VECTOR, LAYOUT).items())
    change(arrays)
    with pytest.raises(ProtocolError, match=message):
        decode(ArrayRecord(arrays), LAYOUT, "separate")


def test_the_order_of_arrays_on_the_wire_does_not_matter() -> None:
    arrays = dict(reversed(list(encode(VECTOR, LAYOUT).items())))
    assert (decode(ArrayRecord(arrays), LAYOUT, "mixed") == VECTOR).all()


def test_an_update_without_the_second_chain_is_refused() -> None:
    content = an_update()
    del content["separate"]
    with pytest.raises(ProtocolError, match="ArrayRecord 'separate' is missing"):
        read_update(content, ORDER, LAYOUT, CHAINS)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_are_the_array(data: bytes) -> None:
    record = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "b": raw(GOOD[: len(data) % 137] + data)})
    with pytest.raises(ProtocolError):
        decode(record, LAYOUT, "mixed")


def test_long_values_are_cut_in_messages() -> None:
    content = RecordDict({"node": ConfigRecord({"protocol": 2, "clients": ["x" * 10_000], "blocks": 1})})
    with pytest.raises(ProtocolError) as error:
        read_identity(content)
    assert len(str(error.value)) < 300
