"""The Ray grid: messages in, replies out, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import RunError
from perennial.common.task import models
from perennial.common.wire.arrays import encode
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order, write_order
from perennial.common.wire.protocol import read_identity, write_query
from tests.processes import wait_until, worker_pids

if TYPE_CHECKING:
    from perennial.simulation.ray_grid import RayGrid

LAYOUT = Layout.of(models.arrays_of(models.build("linear", (1, 8, 8), 10)))


@pytest.fixture
def grid(shared_grid: RayGrid) -> RayGrid:
    """Three nodes of five clients on two workers."""
    shared_grid.begin(3, RunConfig(clients=5, model="linear", engine="loop").to_mapping())
    return shared_grid


def queries(grid: RayGrid) -> list[Message]:
    return [Message(write_query(), node, "query") for node in grid.get_node_ids()]


def train_order(node: int, client: int) -> Message:
    model = encode(np.zeros(LAYOUT.size, np.float32), LAYOUT)
    return Message(write_order(Order(1, 0, 0, (client,), False), {"mixed": model}), node, "train")


def hosted_clients(grid: RayGrid) -> list[tuple[int, ...]]:
    sent = queries(grid)
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.send_and_receive(sent, timeout=600)}
    return [read_identity(replies[message.metadata.message_id].content).clients for message in sent]


def test_every_node_answers_for_its_own_clients(grid: RayGrid) -> None:
    assert hosted_clients(grid) == [(0, 3), (1, 4), (2,)]


def test_what_a_client_raises_is_an_error_reply_and_the_worker_lives_on(grid: RayGrid) -> None:
    hosted_clients(grid)
    before = worker_pids()
    first, *_ = grid.get_node_ids()
    replies = list(grid.send_and_receive([train_order(first, client=4)], timeout=600))
    assert [reply.error.code for reply in replies] == [2]
    assert replies[0].error.reason == "ProtocolError: client 4 is not hosted here"
    assert len(hosted_clients(grid)) == 3
    assert worker_pids() == before
    assert len(before) == 2


def test_nothing_to_send_is_answered_with_nothing(grid: RayGrid) -> None:
    assert list(grid.send_and_receive([], timeout=1)) == []


def test_a_reply_after_the_deadline_answers_nobody(grid: RayGrid) -> None:
    settings = RunConfig(clients=5, model="linear", engine="loop", local_iterations=5000)
    grid.begin(3, settings.to_mapping())
    first, *_ = grid.get_node_ids()
    hosted_clients(grid)
    # It is there seconds later, and belongs to no question that is still asked.
    assert list(grid.send_and_receive([train_order(first, 0)], timeout=0.05)) == []
    assert hosted_clients(grid) == [(0, 3), (1, 4), (2,)]


def test_messages_can_be_pushed_and_pulled(grid: RayGrid) -> None:
    ids = list(grid.push_messages(queries(grid)))
    assert len(set(ids)) == 3
    found: list[Message] = []
    deadline = time.monotonic() + 600
    while len(found) < 3 and time.monotonic() < deadline:
        found += grid.pull_messages(ids)
    assert {reply.metadata.reply_to_message_id for reply in found} == set(ids)
    assert list(grid.pull_messages(ids)) == []


def test_the_next_run_keeps_the_workers_and_forgets_the_nodes(grid: RayGrid) -> None:
    hosted_clients(grid)
    before = worker_pids()
    grid.begin(2, RunConfig(clients=2).to_mapping())
    assert hosted_clients(grid) == [(0,), (1,)]
    assert worker_pids() == before
    assert len(before) == 2


class SlowStarter:
    """Stands in for a worker whose imports take a while."""

    def __init__(self, *given: object) -> None:
        time.sleep(1.0)

    def machine(self) -> str:
        return "here"


class Fatal(SlowStarter):
    """Stands in for a worker that every order kills."""

    def __init__(self, *given: object) -> None: ...

    def handle(self, *message: object) -> None:
        os._exit(1)


class Unable(SlowStarter):
    """Stands in for a worker on a machine that lacks a package."""

    def __init__(self, *given: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'")


def small_grid(actor: type) -> RayGrid:
    """A grid of one worker without a CPU of its own: the two of the shared grid may be all that there are."""
    from perennial.simulation.ray_grid import RayGrid
    from perennial.simulation.workers import Workers

    grid = RayGrid(1)
    grid._workers = Workers(1, actor=actor, cpus=0.0)
    return grid


def test_a_run_begins_when_its_workers_have_started(shared_grid: RayGrid) -> None:
    grid = small_grid(SlowStarter)
    asked = time.monotonic()
    grid.begin(1, {})
    assert time.monotonic() - asked >= 1.0
    assert len(grid.machines()) == 1
    grid.close()


def test_an_order_that_kills_its_workers_is_an_error_in_the_end(shared_grid: RayGrid) -> None:
    grid = small_grid(Fatal)
    grid.begin(1, {})
    (reply,) = grid.send_and_receive(queries(grid), timeout=600)
    assert "worker died 3 times" in (reply.error.reason or "")
    grid.close()


def test_workers_that_cannot_start_end_the_run_in_one_line(shared_grid: RayGrid) -> None:
    grid = small_grid(Unable)
    with pytest.raises(RunError, match="no worker can start; is the same Perennial installed"):
        grid.begin(1, {})
    grid.close()


def test_what_a_dead_worker_had_another_one_does(grid: RayGrid) -> None:
    hosted_clients(grid)
    victim = worker_pids()[0]
    os.kill(victim, signal.SIGKILL)
    assert hosted_clients(grid) == [(0, 3), (1, 4), (2,)]
    assert victim not in worker_pids()
    # Ray starts another one in its place.
    wait_until(lambda: grid.machines() and len(worker_pids()) == 2, 300, "two workers")


def test_where_nodes_live_is_known_once_they_have_answered(grid: RayGrid) -> None:
    assert grid.homes() == ["", "", ""]
    hosted_clients(grid)
    assert set(grid.homes()) == grid.machines()


def test_a_message_that_no_handler_takes_is_an_error_reply(grid: RayGrid) -> None:
    first, *_ = grid.get_node_ids()
    replies = list(grid.send_and_receive([Message(RecordDict({}), first, "train")], timeout=600))
    assert [reply.has_error() for reply in replies] == [True]
    assert "'order' is missing" in (replies[0].error.reason or "")


# --- Ray itself -------------------------------------------------------------------------------------------------------


@pytest.fixture
def failing_ray(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A Ray that never starts; returns the options it was started with."""
    import ray

    tried: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        tried.append(options)
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return tried


def test_a_ray_that_does_not_start_is_tried_again_and_then_fails_the_run_in_one_line(
    failing_ray: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perennial.simulation.cluster import connected

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(RunError, match=r"Ray did not start \(The current node timed out during startup\.\)"),
        connected(verbose=False),
    ):
        pass
    assert len(failing_ray) == 3
    assert not Path(failing_ray[0]["_temp_dir"]).exists()


def test_a_cluster_that_cannot_be_reached_is_named(
    failing_ray: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from perennial.simulation.cluster import connected

    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.9:6379")
    with pytest.raises(RunError, match=r"Ray at 10\.0\.0\.9:6379 cannot be reached"), connected(verbose=False):
        pass
    assert [options["address"] for options in failing_ray] == ["10.0.0.9:6379"]
