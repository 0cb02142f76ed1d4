"""The wire protocol, version 1: the only file that knows the names of records and keys in messages.

A server writes orders and reads identities, updates and losses; a client the other way round. Readers trust nothing:
whatever does not fit is a ``ProtocolError`` that says what and how.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, MetricRecordValues, RecordDict

from common.errors import shown
from common.layout import Layout, Vector

_T = TypeVar("_T")

VERSION = 1
MIXED, SEPARATE = "mixed", "separate"
# More than this is no count of clients or examples on one node.
_MOST = 2**40
# Sums of thousands of these are still finite.
_LARGEST = 1e30


class ProtocolError(ValueError):
    """A message that does not follow the protocol."""


@dataclass(frozen=True)
class Identity:
    """What a node says of itself: the clients it hosts, and how many blocks their shards cover."""

    clients: tuple[int, ...]
    blocks: int


@dataclass(frozen=True)
class Order:
    """What a node is asked to do for a round; a loss order uses the fields up to ``seed`` alone."""

    server_round: int
    cycle: int
    block: int
    clients: tuple[int, ...]
    seed: int
    local_iterations: int = 0
    batch_size: int = 0
    lr_mixed: float = 0.0
    lr_separate: float = 0.0
    report_loss: bool = False


@dataclass(frozen=True)
class Losses:
    """The mean over a node's clients of their average losses; NaN for a chain that was not judged."""

    num_clients: int
    num_examples: int
    mixed: float = math.nan
    separate: float = math.nan


@dataclass(frozen=True)
class Update:
    """What a node trained. models: the mean over its clients by chain; losses: of the received models, where asked."""

    models: Mapping[str, Vector]
    train_losses: Mapping[str, float]
    losses: Losses


# --- Identity ---------------------------------------------------------------------------------------------------------


def write_query() -> RecordDict:
    return RecordDict({"query": ConfigRecord({"protocol": VERSION})})


def write_identity(identity: Identity) -> RecordDict:
    record = ConfigRecord({"protocol": VERSION, "clients": list(identity.clients), "blocks": identity.blocks})
    return RecordDict({"node": record})


def read_identity(content: RecordDict) -> Identity:
    record = _record(content, "node", ConfigRecord)
    if (version := record.get("protocol")) != VERSION:
        raise ProtocolError(f"node speaks protocol {shown(version)}, this server {VERSION}")
    clients = _client_ids(record)
    return Identity(clients, _whole(record, "blocks", 1))


# --- Orders -----------------------------------------------------------------------------------------------------------


def write_order(order: Order, models: Mapping[str, ArrayRecord]) -> RecordDict:
    """Return a train order; ``models`` are encoded by ``encode``, once for all nodes."""
    record = ConfigRecord(
        {
            **_slot_and_clients(order),
            "local-iterations": order.local_iterations,
            "batch-size": order.batch_size,
            "lr-mixed": order.lr_mixed,
            "lr-separate": order.lr_separate,
            "report-loss": order.report_loss,
        }
    )
    return RecordDict({**models, "order": record})


def write_loss_order(order: Order, models: Mapping[str, ArrayRecord]) -> RecordDict:
    return RecordDict({**models, "order": ConfigRecord(_slot_and_clients(order))})


def read_order(content: RecordDict) -> Order:
    record = _record(content, "order", ConfigRecord)
    report_loss = record.get("report-loss")
    if not isinstance(report_loss, bool):
        raise ProtocolError(f"order: report-loss must be true or false, got {shown(report_loss)}")
    return Order(
        **_read_slot_and_clients(record),
        local_iterations=_whole(record, "local-iterations", 1),
        batch_size=_whole(record, "batch-size", 0),
        lr_mixed=_real(record, "lr-mixed"),
        lr_separate=_real(record, "lr-separate"),
        report_loss=report_loss,
    )


def read_loss_order(content: RecordDict) -> Order:
    return Order(**_read_slot_and_clients(_record(content, "order", ConfigRecord)))


def read_models(content: RecordDict, layout: Layout) -> dict[str, Vector]:
    """Return the models of an order by chain: mixed always, separate where it is there."""
    chains = [MIXED, *([SEPARATE] if SEPARATE in content else [])]
    return {chain: decode(_record(content, chain, ArrayRecord), layout, chain) for chain in chains}


def _slot_and_clients(order: Order) -> dict[str, Any]:
    return {
        "server-round": order.server_round,
        "cycle": order.cycle,
        "block": order.block,
        "clients": list(order.clients),
        "seed": order.seed,
    }


def _read_slot_and_clients(record: ConfigRecord) -> dict[str, Any]:
    return {
        "server_round": _whole(record, "server-round", 1),
        "cycle": _whole(record, "cycle", 0),
        "block": _whole(record, "block", 0),
        "clients": _client_ids(record),
        "seed": _whole(record, "seed", 0, 2**63 - 1),
    }


# --- Updates and losses -----------------------------------------------------------------------------------------------


def write_update(update: Update, layout: Layout) -> RecordDict:
    metrics: dict[str, MetricRecordValues] = {
        "num-clients": update.losses.num_clients,
        "num-examples": update.losses.num_examples,
    }
    for chain, loss in update.train_losses.items():
        metrics[f"train-loss-{chain}"] = loss
    metrics |= _judged(update.losses)
    models = {chain: encode(vector, layout) for chain, vector in update.models.items()}
    return RecordDict({**models, "update": MetricRecord(metrics)})


def read_update(content: RecordDict, order: Order, layout: Layout, chains: Sequence[str]) -> Update:
    """Return the update that answers ``order``, checked: names, shapes, dtypes, finite, plausible counts."""
    metrics = _record(content, "update", MetricRecord)
    models = {chain: decode(_record(content, chain, ArrayRecord), layout, chain) for chain in chains}
    train_losses = {chain: _loss(metrics, f"train-loss-{chain}") for chain in chains}
    return Update(models, train_losses, _read_losses(metrics, order, chains if order.report_loss else ()))


def write_losses(losses: Losses) -> RecordDict:
    counts = {"num-clients": losses.num_clients, "num-examples": losses.num_examples}
    return RecordDict({"losses": MetricRecord({**counts, **_judged(losses)})})


def read_losses(content: RecordDict, order: Order) -> Losses:
    return _read_losses(_record(content, "losses", MetricRecord), order, (MIXED, SEPARATE))


def _judged(losses: Losses) -> dict[str, float]:
    pairs = {"loss-mixed": losses.mixed, "loss-separate": losses.separate}
    return {key: loss for key, loss in pairs.items() if not math.isnan(loss)}


def _read_losses(metrics: MetricRecord, order: Order, chains: Sequence[str]) -> Losses:
    num_clients = _whole(metrics, "num-clients", 1, len(order.clients))
    num_examples = _whole(metrics, "num-examples", num_clients)
    return Losses(num_clients, num_examples, **{chain: _loss(metrics, f"loss-{chain}") for chain in chains})


# --- Arrays and values ------------------------------------------------------------------------------------------------


def encode(vector: Vector, layout: Layout) -> ArrayRecord:
    """Return a model as the named arrays of its layout."""
    arrays = layout.unflatten(vector.astype("<f4", copy=False))
    return ArrayRecord(
        {
            name: Array("float32", array.shape, "numpy.ndarray", _npy_header(array.shape) + array.tobytes())
            for name, array in arrays.items()
        },
        keep_input=False,
    )


def size_of(record: ArrayRecord) -> int:
    """Return the bytes that the model takes on the wire."""
    return sum(len(array.data) for array in record.values())


def decode(record: ArrayRecord, layout: Layout, chain: str) -> Vector:
    """Return the vector of a model with the names, shapes and dtypes of ``layout`` and finite values."""
    if set(record) != set(layout.names):
        odd = sorted(set(record) ^ set(layout.names))[0]
        raise ProtocolError(
            f"{chain}: array {odd[:80]!r} is {'missing' if odd in layout.names else 'not of this model'}"
        )
    vector = np.empty(layout.size, np.float32)
    for name, target in layout.unflatten(vector).items():
        target[...] = _decode_array(record[name], target.shape, f"{chain}: {name}")
    if not np.isfinite(vector).all():
        raise ProtocolError(f"{chain}: the model has values that are not finite")
    return vector


def _decode_array(array: Array, shape: tuple[int, ...], where: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Read .npy bytes in place; the size is checked before anything is believed."""
    if array.stype != "numpy.ndarray" or array.dtype != "float32" or tuple(array.shape) != shape:
        got = f"{array.stype} {array.dtype} {tuple(array.shape)}"[:120]
        raise ProtocolError(f"{where} must be numpy float32 {shape}, got {got}")
    header = _npy_header(shape)
    if len(array.data) == len(header) + 4 * math.prod(shape) and array.data.startswith(header):
        return np.frombuffer(array.data, np.dtype("<f4"), offset=len(header)).reshape(shape)
    try:
        stream = BytesIO(array.data)
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("not .npy version 1.0")
        written, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if written != shape or fortran or dtype != np.dtype("<f4"):
            raise ValueError(f"its data is {dtype} {written}")
        return np.frombuffer(array.data, np.dtype("<f4"), math.prod(shape), stream.tell()).reshape(shape)
    except Exception as error:  # the header is a Python literal from outside: its parser has many ways to fail
        raise ProtocolError(f"{where} cannot be read: {str(error)[:120]}") from error


@lru_cache(maxsize=1024)
def _npy_header(shape: tuple[int, ...]) -> bytes:
    """Return what NumPy writes before the data of a little-endian float32 array of this shape."""
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def _record(content: RecordDict, name: str, kind: type[_T]) -> _T:
    record = content.get(name)
    if not isinstance(record, kind):
        raise ProtocolError(f"{kind.__name__} {name!r} is missing")
    return record


def _whole(record: Mapping[str, Any], key: str, least: int, most: int = _MOST) -> int:
    value = record.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(f"{key} must be a whole number in [{least}, {most}], got {shown(value)}")
    return value


def _real(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not -_LARGEST <= value <= _LARGEST:
        raise ProtocolError(f"{key} must be a number of at most {_LARGEST:g}, got {shown(value)}")
    return float(value)


def _loss(record: Mapping[str, Any], key: str) -> float:
    loss = _real(record, key)
    if loss < 0:
        raise ProtocolError(f"{key} must be at least 0, got {loss:g}")
    return loss


def _client_ids(record: Mapping[str, Any]) -> tuple[int, ...]:
    clients = record.get("clients")
    if (
        not isinstance(clients, list)
        or not clients
        or any(type(item) is not int or not 0 <= item < 2**31 for item in clients)
    ):
        raise ProtocolError(f"clients must be client ids from 0, got {shown(clients)}")
    if len(set(clients)) != len(clients):
        raise ProtocolError("clients has an id twice")
    return tuple(clients)
