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

from common import protocol
from common.layout import Layout
from common.protocol import Identity, Losses, Order, ProtocolError, Update

LAYOUT = Layout(("w", "b"), ((2, 3), (2,)))
CHAINS = ("mixed", "separate")
ORDER = Order(5, 1, 2, (3, 4, 9), 7, 10, 2, 0.1, 0.2, True)
VECTOR = np.arange(8, dtype=np.float32)

ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6, unique=True).map(tuple)
rates = st.floats(-1e30, 1e30)
loss_values = st.floats(0, 1e30)
orders = st.builds(
    Order, st.integers(1, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), ids, st.integers(0, 2**63 - 1),
    st.integers(1, 2**40), st.integers(0, 2**40), rates, rates, st.booleans(),
)  # fmt: skip
vectors = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=8).map(
    lambda values: np.array(values, np.float32)
)


def encoded(*chains: str) -> dict[str, ArrayRecord]:
    return {chain: protocol.encode(VECTOR, LAYOUT) for chain in chains}


def an_update() -> RecordDict:
    losses = Losses(3, 30, 0.5, 0.6)
    return protocol.write_update(Update(dict.fromkeys(CHAINS, VECTOR), dict.fromkeys(CHAINS, 0.7), losses), LAYOUT)


# --- Round trips ------------------------------------------------------------------------------------------------------


@given(ids, st.integers(1, 2**40))
def test_identities_round_trip(clients: tuple[int, ...], blocks: int) -> None:
    identity = Identity(clients, blocks)
    assert protocol.read_identity(protocol.write_identity(identity)) == identity


@given(orders)
def test_train_orders_round_trip(order: Order) -> None:
    assert protocol.read_order(protocol.write_order(order, encoded("mixed"))) == order


@given(orders)
def test_loss_orders_round_trip_with_slot_clients_and_seed(order: Order) -> None:
    read = protocol.read_loss_order(protocol.write_loss_order(order, encoded(*CHAINS)))
    assert read == Order(order.server_round, order.cycle, order.block, order.clients, order.seed)


@given(vectors, vectors, loss_values, loss_values, st.integers(1, 3), st.booleans())
def test_updates_round_trip(mixed: Any, separate: Any, one: float, two: float, clients: int, judged: bool) -> None:
    models = {"mixed": mixed, "separate": separate}
    losses = Losses(clients, 30, *((one, two) if judged else ()))
    content = protocol.write_update(Update(models, {"mixed": one, "separate": two}, losses), LAYOUT)
    order = Order(1, 0, 0, (3, 4, 9), 0, 1, report_loss=judged)
    found = protocol.read_update(content, order, LAYOUT, CHAINS)
    assert all((found.models[chain] == models[chain]).all() for chain in CHAINS)
    assert found.train_losses == {"mixed": one, "separate": two}
    assert (found.losses == losses) if judged else math.isnan(found.losses.mixed)


@given(loss_values, loss_values, st.integers(1, 3))
def test_losses_round_trip(mixed: float, separate: float, clients: int) -> None:
    losses = Losses(clients, 99, mixed, separate)
    assert protocol.read_losses(protocol.write_losses(losses), ORDER) == losses


def test_models_of_an_order_are_read_by_chain() -> None:
    assert list(protocol.read_models(protocol.write_order(ORDER, encoded("mixed")), LAYOUT)) == ["mixed"]
    both = protocol.read_models(protocol.write_order(ORDER, encoded(*CHAINS)), LAYOUT)
    assert list(both) == ["mixed", "separate"]
    assert (both["separate"] == VECTOR).all()


def test_names_on_the_wire_are_the_designs() -> None:
    content = protocol.write_order(ORDER, encoded(*CHAINS))
    assert set(content) == {"mixed", "separate", "order"}
    assert set(content["order"]) == {
        "server-round", "cycle", "block", "clients", "seed", "local-iterations", "batch-size", "lr-mixed",
        "lr-separate", "report-loss",
    }  # fmt: skip
    update = an_update()
    assert set(update) == {"mixed", "separate", "update"}
    assert set(update["update"]) == {
        "num-clients", "num-examples", "train-loss-mixed", "train-loss-separate", "loss-mixed", "loss-separate",
    }  # fmt: skip
    assert set(protocol.write_identity(Identity((1,), 1))["node"]) == {"protocol", "clients", "blocks"}
    assert set(protocol.write_losses(Losses(1, 1, 0.1, 0.2))["losses"]) == {
        "num-clients", "num-examples", "loss-mixed", "loss-separate",
    }  # fmt: skip


def test_the_size_is_that_of_the_arrays_with_their_headers() -> None:
    assert protocol.size_of(protocol.encode(VECTOR, LAYOUT)) == 8 * 4 + 2 * 128


# --- Malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "ConfigRecord 'node' is missing"),
        (MetricRecord({"protocol": 1}), "ConfigRecord 'node' is missing"),
        (ConfigRecord({"clients": [1], "blocks": 1}), "node speaks protocol None, this server 1"),
        (ConfigRecord({"protocol": 2, "clients": [1], "blocks": 1}), "node speaks protocol 2"),
        (ConfigRecord({"protocol": 1, "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 1, "clients": [], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 1, "clients": [-1], "blocks": 1}), "clients must be client ids from 0"),
        (ConfigRecord({"protocol": 1, "clients": [2**31], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 1, "clients": [1.0], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 1, "clients": ["a"], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 1, "clients": [True], "blocks": 1}), "clients must be client ids"),
        (ConfigRecord({"protocol": 1, "clients": [4, 4], "blocks": 1}), "clients has an id twice"),
        (ConfigRecord({"protocol": 1, "clients": [1], "blocks": 0}), r"blocks must be a whole number in \[1"),
        (ConfigRecord({"protocol": 1, "clients": [1], "blocks": 2.0}), "blocks must be a whole number"),
    ],
)
def test_a_malformed_identity_is_refused(record: Any, message: str) -> None:
    content = RecordDict({"node": record} if record is not None else {})
    with pytest.raises(ProtocolError, match=message):
        protocol.read_identity(content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("server-round", 0), ("server-round", 1.0), ("server-round", "1"), ("cycle", -1), ("block", -1),
        ("block", 2**41), ("clients", []), ("clients", [1, 1]), ("seed", -1), ("local-iterations", 0),
        ("batch-size", -1), ("lr-mixed", math.nan), ("lr-mixed", "0.1"), ("lr-separate", math.inf),
        ("report-loss", 1), ("report-loss", "true"),
    ],
)  # fmt: skip
def test_a_malformed_order_is_refused_by_key(key: str, value: Any) -> None:
    content = protocol.write_order(ORDER, encoded("mixed"))
    content["order"] = ConfigRecord({**content["order"], key: value})
    with pytest.raises(ProtocolError, match=key):
        protocol.read_order(content)


@pytest.mark.parametrize("key", ["server-round", "clients", "seed", "local-iterations", "lr-mixed", "report-loss"])
def test_an_order_without_a_key_is_refused(key: str) -> None:
    content = protocol.write_order(ORDER, encoded("mixed"))
    content["order"] = ConfigRecord({name: value for name, value in content["order"].items() if name != key})
    with pytest.raises(ProtocolError, match=key):
        protocol.read_order(content)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num-clients", 0), ("num-clients", 4), ("num-clients", 1.0), ("num-examples", 2), ("num-examples", 2**50),
        ("train-loss-mixed", math.nan), ("train-loss-separate", math.inf), ("loss-mixed", math.nan),
        ("loss-separate", -math.inf), ("loss-mixed", -0.1),
        ("loss-mixed", [0.1]), ("num-clients", None), ("train-loss-separate", None),
        ("loss-separate", None),
    ],
)  # fmt: skip
def test_malformed_metrics_are_refused_by_key(key: str, value: Any) -> None:
    content = an_update()
    kept = {name: old for name, old in content["update"].items() if name != key}
    content["update"] = MetricRecord(kept if value is None else {**kept, key: value})
    with pytest.raises(ProtocolError, match=key):
        protocol.read_update(content, ORDER, LAYOUT, CHAINS)


def test_losses_are_refused_as_updates_are() -> None:
    for record in ({"num-clients": 1, "num-examples": 1, "loss-mixed": 0.1}, {"num-clients": 9, "num-examples": 9}):
        with pytest.raises(ProtocolError, match=r"loss-separate|num-clients"):
            protocol.read_losses(RecordDict({"losses": MetricRecord(record)}), ORDER)
    with pytest.raises(ProtocolError, match="MetricRecord 'losses' is missing"):
        protocol.read_losses(RecordDict({"losses": ConfigRecord({"num-clients": 1})}), ORDER)


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
        protocol.decode(record, LAYOUT, "mixed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("b"), "array 'b' is missing"),
        (lambda arrays: arrays.update(c=Array(np.zeros(1, np.float32))), "array 'c' is not of this model"),
        (lambda arrays: arrays.clear(), "array 'b' is missing"),
    ],
)
def test_missing_and_surplus_arrays_are_named(change: Callable[[dict[str, Array]], Any], message: str) -> None:
    arrays = dict(protocol.encode(VECTOR, LAYOUT).items())
    change(arrays)
    with pytest.raises(ProtocolError, match=message):
        protocol.decode(ArrayRecord(arrays), LAYOUT, "separate")


def test_the_order_of_arrays_on_the_wire_does_not_matter() -> None:
    arrays = dict(reversed(list(protocol.encode(VECTOR, LAYOUT).items())))
    assert (protocol.decode(ArrayRecord(arrays), LAYOUT, "mixed") == VECTOR).all()


def test_an_update_without_the_second_chain_is_refused() -> None:
    content = an_update()
    del content["separate"]
    with pytest.raises(ProtocolError, match="ArrayRecord 'separate' is missing"):
        protocol.read_update(content, ORDER, LAYOUT, CHAINS)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_or_are_the_array(data: bytes) -> None:
    record = ArrayRecord({"w": Array(np.zeros((2, 3), np.float32)), "b": raw(GOOD[: len(data) % 137] + data)})
    with pytest.raises(ProtocolError):
        protocol.decode(record, LAYOUT, "mixed")


def test_long_values_are_cut_in_messages() -> None:
    content = RecordDict({"node": ConfigRecord({"protocol": 1, "clients": ["x" * 10_000], "blocks": 1})})
    with pytest.raises(ProtocolError) as error:
        protocol.read_identity(content)
    assert len(str(error.value)) < 300
