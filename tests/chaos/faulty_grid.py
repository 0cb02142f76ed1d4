"""A Grid that loses, delays, doubles, reorders and corrupts replies, from a seed, and keeps all that passed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun


@dataclass(frozen=True)
class Passed:
    """One exchange: what the server sent, and what it was given, in order."""

    sent: list[Message]
    delivered: list[Message]


@dataclass
class ChaosGrid(Grid):
    """Wraps a Grid. rates: the chance of each fault for a reply; questions of identity are never corrupted."""

    inner: Grid
    rates: Mapping[str, float]
    seed: int = 0
    exchanges: list[Passed] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _late: list[Message] = field(default_factory=list)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        # Answers that come after their deadline arrive in the midst of a later exchange.
        delivered, self._late = self._late, []
        if not sent:
            return delivered
        replies = list(self.inner.send_and_receive(sent, timeout=timeout))
        requests = {message.metadata.message_id: message for message in sent}
        for reply in replies:
            delivered += self._fate(reply, requests[reply.metadata.reply_to_message_id])
        if self.rates:
            random.Random(f"{self.seed}-order-{len(self.exchanges)}").shuffle(delivered)
        self.exchanges.append(Passed(sent, delivered))
        return delivered

    def _fate(self, reply: Message, request: Message) -> list[Message]:
        """Return what becomes of a reply; drawn by exchange and node, because replies come in any order."""
        kind, node = request.metadata.message_type, request.metadata.dst_node_id
        rng = random.Random(f"{self.seed}-{len(self.exchanges)}-{node}")
        if reply.has_error():
            return [reply]
        for fault, rate in self.rates.items():
            if rng.random() < rate and (kind != "query" or fault in ("drop", "late", "error")):
                self.faults.append(fault)
                return self._struck(fault, reply, request, rng)
        return [reply]

    def _struck(self, fault: str, reply: Message, request: Message, rng: random.Random) -> list[Message]:
        if fault == "drop":
            return []
        if fault == "late":
            self._late.append(reply)
            return []
        if fault == "error":
            return [Message(Error(2, "struck"), reply_to=request)]
        if fault == "double":
            # Whichever comes first counts; both are sound, and they differ.
            return [reply, Message(scaled(reply.content, rng), reply_to=request)]
        return [Message(CORRUPTIONS[fault](reply.content, rng), reply_to=request)]

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def set_run(self, run: FlowerRun) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> FlowerRun:
        return self.inner.run

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        return self.inner.create_message(*arguments, **options)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


# --- Corruptions: each takes a sound reply's content and returns another one ------------------------------------------


def _changed_array(content: RecordDict, rng: random.Random, change: Callable[[Array], Array]) -> RecordDict:
    """Change one array of an update; a reply without models loses its metrics instead."""
    records = [name for name in sorted(content) if isinstance(content[name], ArrayRecord)]
    if not records:
        return RecordDict({})
    name = rng.choice(records)
    arrays = dict(content[name].items())
    key = rng.choice(sorted(arrays))
    arrays[key] = change(arrays[key])
    return RecordDict({**dict(content.items()), name: ArrayRecord(arrays)})


def _changed_metric(content: RecordDict, key: str, value: Any) -> RecordDict:
    name = "update" if "update" in content else "losses"
    return RecordDict({**dict(content.items()), name: MetricRecord({**content[name], key: value})})


def scaled(content: RecordDict, rng: random.Random) -> RecordDict:
    """Return other models or losses that are just as sound."""
    if "losses" in content:
        return _changed_metric(content, "loss-mixed", content["losses"]["loss-mixed"] * 2)
    return _changed_array(content, rng, lambda array: Array((array.numpy() * 1.01).astype(np.float32)))


def flipped(content: RecordDict, rng: random.Random) -> RecordDict:
    """Flip bits behind the header: what results may be a model like any other, or far off, or no number."""

    def flip(array: Array) -> Array:
        data = bytearray(array.data)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(128, len(data))] ^= 1 << rng.randrange(8)
        return Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=bytes(data))

    return _changed_array(content, rng, flip)


def with_nan(content: RecordDict, rng: random.Random) -> RecordDict:
    def spoil(array: Array) -> Array:
        values = array.numpy().copy()
        values.flat[rng.randrange(values.size)] = rng.choice((np.nan, np.inf, -np.inf))
        return Array(values)

    return _changed_array(content, rng, spoil)


def wrong_shape(content: RecordDict, rng: random.Random) -> RecordDict:
    return _changed_array(content, rng, lambda array: Array(np.append(array.numpy(), np.float32(0))))


def wrong_dtype(content: RecordDict, rng: random.Random) -> RecordDict:
    return _changed_array(content, rng, lambda array: Array(array.numpy().astype(np.float64)))


def wrong_counts(content: RecordDict, rng: random.Random) -> RecordDict:
    key = rng.choice(("num-clients", "num-examples"))
    return _changed_metric(content, key, rng.choice((0, -1, 2**41)) if key == "num-examples" else rng.choice((0, 99)))


def wrong_loss(content: RecordDict, rng: random.Random) -> RecordDict:
    key = "train-loss-mixed" if "update" in content else "loss-mixed"
    return _changed_metric(content, key, rng.choice((np.nan, np.inf, -1.0, 1.7e308)))


def nothing(content: RecordDict, rng: random.Random) -> RecordDict:
    return RecordDict({})


CORRUPTIONS: dict[str, Callable[[RecordDict, random.Random], RecordDict]] = {
    "flip": flipped,
    "nan": with_nan,
    "shape": wrong_shape,
    "dtype": wrong_dtype,
    "counts": wrong_counts,
    "loss": wrong_loss,
    "empty": nothing,
}
