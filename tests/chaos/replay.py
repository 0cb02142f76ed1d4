"""The predictors that follow from what a run was sent, in plain NumPy: shares no code with the packages.

It goes through the exchanges that a ``ChaosGrid`` kept, decides for itself which replies count, and holds every model
that the server sent against its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from tests.chaos.faulty_grid import Passed

Model = NDArray[np.float64]
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Rules:
    """What the run was told. decay None: the running mean."""

    chains: tuple[str, ...]
    decay: float | None = 0.5
    min_replies: float = 0.5
    aggregation: str = "mean"
    trim: float = 0.25
    bound: float = math.inf


@dataclass
class Replay:
    """State after the exchanges so far. rounds: (round, block, chosen chain, clients that count)."""

    rules: Rules
    initial: Model
    blocks: int
    predictors: list[Model] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int, str | None, int]] = field(default_factory=list)
    repeated: int = 0

    def __post_init__(self) -> None:
        self.mixed = self.initial
        self.separate = [self.initial] * self.blocks
        self.predictors = [self.initial] * self.blocks
        self.folded = [0] * self.blocks
        self._pending: tuple[int, int, int] | None = None

    def run(self, exchanges: list[Passed]) -> None:
        for passed in exchanges:
            kind = passed.sent[0].metadata.message_type
            if kind == "query":
                continue
            for message in passed.sent:
                self._check_sent(message)
            counting = self._counting(passed)
            asked = sum(len(message.content["order"]["clients"]) for message in passed.sent)
            heard = sum(len(message.content["order"]["clients"]) for message, _ in counting)
            if not heard or heard < self.rules.min_replies * asked - 1e-9:
                self.repeated += 1
            elif kind == "train":
                self._train(counting, heard)
            else:
                self._choose([reply.content["losses"] for _, reply in counting])
        assert self._pending is None

    def _check_sent(self, message: Message) -> None:
        block = message.content["order"]["block"]
        for chain, model in (("mixed", self.mixed), ("separate", self.separate[block])):
            if chain in self.rules.chains:
                assert np.abs(vector(message.content[chain]) - model).max() < TOLERANCE

    def _counting(self, passed: Passed) -> list[tuple[Message, Message]]:
        """Return the first reply to each message where it is sound, by client."""
        first: dict[str, Message] = {}
        for reply in passed.delivered:
            first.setdefault(reply.metadata.reply_to_message_id, reply)
        pairs = [(m, first[m.metadata.message_id]) for m in passed.sent if m.metadata.message_id in first]
        return sorted(
            (pair for pair in pairs if self._sound(*pair)), key=lambda pair: pair[0].content["order"]["clients"]
        )

    def _sound(self, message: Message, reply: Message) -> bool:
        if reply.has_error():
            return False
        order = message.content["order"]
        name = "update" if message.metadata.message_type == "train" else "losses"
        if name not in reply.content:
            return False
        metrics = reply.content[name]
        wanted = [f"loss-{c}" for c in self.rules.chains] if name == "losses" or order["report-loss"] else []
        wanted += [f"train-loss-{c}" for c in self.rules.chains] if name == "update" else []
        if not all(-1e30 <= metrics.get(key, math.nan) <= 1e30 for key in wanted):
            return False
        if not 1 <= metrics["num-clients"] <= len(order["clients"]):
            return False
        if not metrics["num-clients"] <= metrics["num-examples"] <= 2**40:
            return False
        return name == "losses" or all(self._sound_model(message, reply, chain) for chain in self.rules.chains)

    def _sound_model(self, message: Message, reply: Message, chain: str) -> bool:
        sent, got = message.content[chain], reply.content[chain]
        for key in sent:
            array = np.load(BytesIO(got[key].data), allow_pickle=False)
            if array.dtype != np.float32 or array.shape != tuple(sent[key].shape) or not np.isfinite(array).all():
                return False
        return bool(np.linalg.norm(vector(got) - vector(sent)) <= self.rules.bound)

    def _train(self, counting: list[tuple[Message, Message]], heard: int) -> None:
        order = counting[0][0].content["order"]
        metrics = [reply.content["update"] for _, reply in counting]
        if self._pending is not None:
            assert order["report-loss"]
            self._choose(metrics)
        block = order["block"]
        weights = [float(one["num-clients"]) for one in metrics]
        new = {
            c: self._average([vector(reply.content[c]) for _, reply in counting], weights) for c in self.rules.chains
        }
        self.mixed = new["mixed"]
        if "separate" in new:
            self.separate[block] = new["separate"]
            self._pending = order["server-round"], block, heard
        else:
            self._fold(order["server-round"], block, heard, None)

    def _choose(self, metrics: list[Any]) -> None:
        assert self._pending is not None
        weights = [float(one["num-clients"]) for one in metrics]
        mixed, separate = (
            float(self._average([np.array([one[f"loss-{c}"]]) for one in metrics], weights, exact=True)[0])
            for c in ("mixed", "separate")
        )
        server_round, block, heard = self._pending
        self._pending = None
        self._fold(server_round, block, heard, "separate" if separate < mixed else "mixed")

    def _fold(self, server_round: int, block: int, heard: int, chosen: str | None) -> None:
        model = self.separate[block] if chosen == "separate" else self.mixed
        r, decay = self.folded[block], self.rules.decay
        keep = r / (r + 1) if decay is None else (decay if r else 0.0)
        self.predictors[block] = rounded(keep * self.predictors[block] + (1 - keep) * model)
        self.folded[block] += 1
        self.rounds.append((server_round, block, chosen, heard))

    def _average(self, models: list[Model], weights: list[float], *, exact: bool = False) -> Model:
        stack = np.stack(models)
        if self.rules.aggregation == "median":
            found = np.median(stack, axis=0)
        elif self.rules.aggregation == "trimmed-mean":
            cut = math.floor(self.rules.trim * len(models))
            found = np.sort(stack, axis=0)[cut : len(models) - cut].mean(axis=0)
        else:
            found = np.average(stack, axis=0, weights=weights)
        return found if exact else rounded(found)


def vector(record: Any) -> Model:
    """Return the arrays of a record by name, end to end."""
    arrays = [np.load(BytesIO(record[key].data), allow_pickle=False) for key in sorted(record)]
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.float64)


def rounded(model: Model) -> Model:
    """The server keeps float32."""
    return model.astype(np.float32).astype(np.float64)
