"""Nodes in memory: a Grid whose nodes answer by simple rules, so that every number can be told by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run as FlowerRun

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.cycle.schedule import Schedule
from perennial.common.wire.arrays import encode
from perennial.common.wire.chains import SEPARATE
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order, read_models, read_order
from perennial.common.wire.protocol import Identity, write_identity
from perennial.common.wire.updates import Losses, Update, write_losses, write_update
from perennial.server.cohort.roster import Roster
from perennial.server.run.pass_rows import row_of
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.own.readers import Reader
from perennial.server.strategies.own.ways import WAYS, Training, assemble
from perennial.server.strategies.record import FoldedRound

LAYOUT = Layout(("w",), ((2,),))
# An .npy header and two float32.
MODEL_BYTES = 128 + 8


@dataclass
class Sent:
    """An order as it arrived at a node."""

    node: int
    message_type: str
    order: Order
    models: dict[str, float]


@dataclass
class FakeGrid(Grid):
    """``nodes``: the clients of each. Training adds 1 to the mixed model and 10 to the separate one.

    losses: (order, models) to the losses of both chains. sabotage: changes or drops a node's honest answer.
    stray: messages that arrive besides the answers.
    """

    nodes: dict[int, tuple[int, ...]]
    blocks: int = 2
    losses: Callable[[Order, dict[str, float]], tuple[float, float]] = lambda order, models: (1.0, 2.0)
    sabotage: Callable[[Sent, RecordDict], RecordDict | Error | None] = lambda sent, content: content
    stray: list[Message] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    exchanges: list[str] = field(default_factory=list)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = list(self.stray)
        messages = list(messages)
        if messages:
            self.exchanges.append(messages[0].metadata.message_type)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            answer = self._answer(message)
            if answer is not None:
                replies.append(Message(answer, reply_to=message))
        return replies

    def _answer(self, message: Message) -> RecordDict | Error | None:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        if kind == MessageType.QUERY:
            self.queries.append(node)
            return write_identity(Identity(self.nodes[node], self.blocks))
        models = {chain: float(model[0]) for chain, model in read_models(message.content, LAYOUT).items()}
        sent = Sent(node, kind, read_order(message.content), models)
        self.sent.append(sent)
        return self.sabotage(sent, self._honest(sent))

    def _honest(self, sent: Sent) -> RecordDict:
        clients = len(sent.order.clients)
        judged = Losses(clients, 10 * clients, *self.losses(sent.order, sent.models))
        if sent.message_type == MessageType.EVALUATE:
            return write_losses(judged)
        models = {c: model(v + (10 if c == SEPARATE else 1)) for c, v in sent.models.items()}
        if not sent.order.report_loss:
            judged = Losses(clients, 10 * clients)
        return write_update(Update(models, dict.fromkeys(models, 0.5), judged), LAYOUT)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def set_run(self, run: FlowerRun) -> None: ...

    @property
    def run(self) -> FlowerRun:
        return FlowerRun.create_empty(1)

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def model(value: float) -> Any:
    return np.full(2, value, np.float32)


@dataclass
class Watcher:
    """Keeps all that the strategy tells: in the place of folders. states: after each round, with all that goes on."""

    training: Training
    roster: Roster
    state: dict[str, Any] | None = None
    records: list[FoldedRound] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    models: list[list[float]] = field(default_factory=list)

    def begin(self, strategy: BlockStrategy, initial_arrays: ArrayRecord) -> Any:
        for reader in self.training.readers:
            reader.begin(initial_arrays)
        if self.state is not None:
            for reader, kept in zip(self.training.readers, self.state["readers"], strict=True):
                reader.load_state_dict(kept)
        return self.state

    def keep(self, state: Any, rounds: Sequence[FoldedRound]) -> None:
        self.records += [replace(record, seconds=0.0) for record in rounds]
        self.states.append({**state, "readers": [reader.state_dict() for reader in self.training.readers]})
        self.models.append([value(one) for one in self.training.strategy.block_models()])

    def end(self) -> None: ...


def value(model: ArrayRecord) -> float:
    return float(next(iter(model.values())).numpy()[0])


@dataclass
class Outcome:
    """A strategy after its run. predictors: a number a block, since both coordinates are the same."""

    strategy: BlockStrategy
    watcher: Watcher
    config: RunConfig

    @property
    def reader(self) -> Reader:
        return self.watcher.training.readers[0]

    @property
    def predictors(self) -> list[float]:
        return [value(one) for one in self.reader.models]

    @property
    def folded(self) -> tuple[int, ...]:
        return self.reader.counts

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row_of(record, WAYS[self.config.strategy], None) for record in self.watcher.records]


@pytest.fixture
def run_strategy(flower_identity: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run a strategy of the app's on a fake grid, from the zero model or from a state."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)

    def run(
        grid: FakeGrid, state: Any = None, schedule: Schedule | None = None, also: Sequence[str] = (), **keys: Any
    ) -> Outcome:
        options = {"blocks": 2, "cycles": 2, "rounds_per_block": 2, "averaging": "mean", "node_timeout": 0.01}
        config = RunConfig(**{**options, **keys})
        roster = Roster(config, config.blocks)
        roster.gather(grid, 1)
        configs = [config, *(replace(config, strategy=name) for name in also)]
        training = assemble(configs, schedule or schedule_of(config), LAYOUT, roster)
        watcher = Watcher(training, roster, state)
        training.strategy.start(grid, encode(model(0), LAYOUT), timeout=1.0, run_dir=watcher)
        return Outcome(training.strategy, watcher, config)

    return run


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The warnings of Perennial's log."""
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    caplog.set_level(logging.WARNING, "perennial")
    return caplog
