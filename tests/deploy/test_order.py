"""The same training over real connections, with answers in another order or within one process: the same bits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MessageType

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.wire.arrays import encode
from perennial.common.wire.layout import FLOAT, Layout
from perennial.common.wire.orders import read_models, read_order
from perennial.common.wire.protocol import Identity, write_identity
from perennial.common.wire.updates import Losses, Update, write_losses, write_update
from perennial.server.cohort.roster import Roster
from perennial.server.link.local_grid import FIRST_NODE_ID, LocalGrid, named, take_identity
from perennial.server.strategies.grids import AroundGrid
from perennial.server.strategies.own.ways import assemble
from tests.deploy.fleet import Server, make_tls, served

LAYOUT = Layout(("w", "b"), ((30, 10), (10,)))
CLIENTS = 5
# Two updates of a round cancel each other and are far larger than the others: what a sum in float64 loses beside them
# depends on the order.
LARGE = {1: np.float32(2.0**90), 3: -np.float32(2.0**90)}


class Turns(AroundGrid):
    """A grid whose devices answer an order to train one after the other. arrived: the clients, as they came."""

    def __init__(self, grid: Any, order: Sequence[int]) -> None:
        super().__init__(grid)
        self.order, self.arrived = order, list[int]()
        self.turn = {client: threading.Semaphore(0) for client in order}

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        listed = list(messages)
        clients = {one.metadata.dst_node_id: read_order(one.content).clients[0] for one in listed}
        replies = self._grid.stream(listed, timeout=timeout)  # type: ignore[attr-defined]
        return self._one_by_one(replies, clients)

    def _one_by_one(self, replies: Iterator[Message], clients: dict[int, int]) -> Iterator[Message]:
        for client in self.order:
            self.turn[client].release()
            reply = next(replies)
            self.arrived.append(clients[reply.metadata.src_node_id])
            yield reply


class Here(LocalGrid):
    """A grid whose nodes are functions of this process."""

    def __init__(self, apps: Sequence[Callable[[Message, Any], Message]]) -> None:
        self._apps = dict(enumerate(apps, FIRST_NODE_ID))

    def get_node_ids(self) -> Iterable[int]:
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        listed = list(messages)
        for message in listed:
            named(message)
        return [self._apps[message.metadata.dst_node_id](message, None) for message in listed]


def trainer(client: int, config: RunConfig, turn: threading.Semaphore | None = None) -> Any:
    """Return an app that moves the models by its own numbers, once it is its turn."""

    def app(message: Message, _: Context) -> Message:
        if message.metadata.message_type == MessageType.QUERY:
            return Message(write_identity(Identity((client,), 2)), reply_to=message)
        order, models = read_order(message.content), read_models(message.content, LAYOUT, config.wire_down)
        losses = Losses(1, 10 + client, **dict.fromkeys(models, 1.0 + client))
        if message.metadata.message_type == MessageType.EVALUATE:
            return Message(write_losses(losses), reply_to=message)
        rng = np.random.default_rng([client, order.server_round])
        moves = rng.normal(size=LAYOUT.size).astype(np.float32)
        if config.wire_up == FLOAT:
            moves += LARGE.get(client, np.float32(0))
        update = Update(
            {chain: model + moves for chain, model in models.items()},
            dict.fromkeys(models, 0.5),
            losses if order.report_loss else Losses(1, 10 + client),
        )
        assert turn is None or turn.acquire(timeout=20)
        return Message(write_update(update, LAYOUT, config.wire_up, models), reply_to=message)

    return app


def deployed(server: Server, config: RunConfig, order: Sequence[int]) -> tuple[list[int], dict[str, bytes]]:
    """Return in what order the updates came, and the predictors."""
    grid = Turns(server.grid, order)
    with ExitStack() as stack:
        for client in range(CLIENTS):
            stack.enter_context(server.device(trainer(client, config, grid.turn[client])))
        return grid.arrived, trained(config, grid)


def trained(config: RunConfig, grid: Any) -> dict[str, bytes]:
    """Return the predictors of a run."""
    roster = Roster(config, config.blocks)
    roster.gather(grid, CLIENTS)
    strategy = assemble([config], schedule_of(config), LAYOUT, roster).strategy
    initial = np.random.default_rng(0).normal(size=LAYOUT.size).astype(np.float32)
    result = strategy.start(grid, encode(initial, LAYOUT), timeout=20.0)
    return {block: b"".join(array.data for array in one.values()) for block, one in result.predictors.items()}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_no_order_of_answers_changes_a_bit_nor_does_the_way_they_come(tls: Path, wire: str) -> None:
    settings = {"blocks": 2, "cycles": 2, "rounds-per-block": 2, "node-timeout": 20.0}
    config = RunConfig.from_mapping({**settings, "wire-down": wire, "wire-up": wire})
    left = []
    for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1], [4, 3, 2, 1, 0]):
        with served(tls) as server:
            arrived, models = deployed(server, config, order)
        assert arrived == order * 8
        left.append(models)
    take_identity()
    here = trained(config, Here([trainer(client, config) for client in range(CLIENTS)]))
    assert len(here) == 2
    assert left == [here] * 3
