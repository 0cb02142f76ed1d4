"""Messages between the server and its nodes: there and back, lost, late and abandoned, and nothing left of them."""

from __future__ import annotations

import threading
from datetime import timedelta

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.server.superlink.linkstate import in_memory_linkstate
from flwr.supercore.corestate import in_memory_corestate
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from perennial.client.link.failures import Unreachable
from perennial.server.link.eager_grid import EagerGrid, Stopped
from perennial.server.link.link import Link, LinkRun
from tests.deploy.conftest import Connect, Device, nothing_left, order
from tests.processes import wait_until


def test_a_model_travels_to_a_node_and_back(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    thread = threading.Thread(target=device.answer, daemon=True)
    asked = order(device.node)
    thread.start()
    (reply,) = EagerGrid(run.grid).send_and_receive([asked], timeout=60)
    thread.join(60)
    assert float(reply.content["mixed"]["layer-4"].numpy()[0]) == 5.0
    assert reply.metadata.src_node_id == device.node


def test_nothing_is_left_of_a_message_that_was_answered(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    grid = EagerGrid(run.grid, forget=run.grid.forget)
    for _ in range(3):
        message = order(device.node)
        (sent,) = grid.push_messages([message])
        device.answer()
        assert len(list(grid.pull_messages([sent]))) == 1
    assert nothing_left(link)


def test_nothing_is_left_of_an_order_that_nobody_fetched(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    grid = EagerGrid(run.grid, forget=run.grid.forget)
    assert list(grid.send_and_receive([order(device.node)], timeout=0.1)) == []
    assert nothing_left(link)


def test_nothing_is_left_of_an_order_to_a_node_that_was_revoked(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    link.revoke(device.node)
    assert list(run.grid.push_messages([order(device.node)])) == [""]
    assert nothing_left(link)


def test_a_reply_that_is_still_being_sent_is_not_waited_for(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(link, connect)
    grid = run.grid
    (sent,) = grid.push_messages([order(device.node)])
    monkeypatch.setattr(device.connection, "_push_parts", lambda *_: None)
    device.answer()
    assert list(grid.pull_messages([sent])) == []
    grid.forget([sent])
    assert nothing_left(link)


@pytest.mark.parametrize("announced", [False, True], ids=["training", "sending"])
@pytest.mark.parametrize("returns", [False, True], ids=["stays-away", "returns"])
def test_an_order_is_lost_when_its_node_goes_offline(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch, announced: bool, returns: bool
) -> None:
    device = Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    monkeypatch.setattr(device.connection, "_push_parts", lambda *_: None)
    if announced:
        device.answer()
    assert list(run.grid.pull_messages([sent])) == []
    link.state.deactivate_node(device.node)
    if returns:
        device.connection.activate()
    (reply,) = wait_for_reply(run, sent)
    assert reply.error.code == 5
    assert reply.metadata.reply_to_message_id == sent
    assert nothing_left(link)


def test_an_order_to_a_node_that_is_offline_already_is_lost_at_once(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    link.state.deactivate_node(device.node)
    (sent,) = run.grid.push_messages([order(device.node)])
    (reply,) = wait_for_reply(run, sent)
    assert reply.error.code == 5


def wait_for_reply(run: LinkRun, sent: str) -> list[Message]:
    replies: list[Message] = []
    wait_until(lambda: replies.extend(run.grid.pull_messages([sent])) or replies, 60, "a reply")
    return replies


def test_an_order_that_is_named_before_its_parts_are_there_is_fetched_later(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(link, connect)
    late: list[tuple[object, ...]] = []
    store = link.state.store_object
    monkeypatch.setattr(link.state, "store_object", lambda *arguments: late.append(arguments))
    run.grid.push_messages([order(device.node)])
    announced = device.connection.pull()
    assert announced is not None
    with pytest.raises(Unreachable, match="not complete yet"):
        device.connection.fetch(announced, {})
    for arguments in late:
        store(*arguments)  # type: ignore[arg-type]
    message, _ = device.connection.fetch(announced, {})
    assert float(message.content["mixed"]["layer-4"].numpy()[0]) == 4.0


def test_an_order_is_named_again_until_it_is_fetched(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    # The connection breaks before the node has read the answer.
    assert device.connection.pull() is not None
    device.answer()
    (reply,) = run.grid.pull_messages([sent])
    assert not reply.has_error()


def test_an_order_that_was_fetched_is_not_named_again(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    run.grid.push_messages([order(device.node)])
    device.fetched()
    assert device.connection.pull() is None


@pytest.mark.parametrize("arrives", [True, False], ids=["answer-lost", "request-lost"])
def test_a_confirmation_that_fails_costs_nothing(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    device = Device(link, connect)
    confirm = device.connection._client.ConfirmMessageReceived

    def lost(request: ConfirmMessageReceivedRequest) -> None:
        if arrives:
            confirm(request)
        raise httpx.ReadTimeout("lost on the way")

    monkeypatch.setattr(device.connection._client, "ConfirmMessageReceived", lost)
    (sent,) = run.grid.push_messages([order(device.node)])
    device.answer()
    assert device.connection.pull() is None
    (reply,) = run.grid.pull_messages([sent])
    assert not reply.has_error()
    assert nothing_left(link)


def test_nothing_is_left_of_a_reply_that_was_being_sent_when_its_order_expired(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, other = Device(link, connect), Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    push, late = device.connection._push_parts, []
    monkeypatch.setattr(device.connection, "_push_parts", lambda *parts: late.append(parts))
    device.answer()
    now = in_memory_linkstate.now
    monkeypatch.setattr(in_memory_linkstate, "now", lambda: now() + timedelta(seconds=61))
    # Whoever asks makes Flower drop what has expired, and with it which reply was to which order.
    assert other.connection.pull() is None
    run.grid.forget([sent])
    push(*late[0])
    assert nothing_left(link)


def test_a_late_reply_is_dropped(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    grid = EagerGrid(run.grid, forget=run.grid.forget)
    (sent,) = grid.push_messages([order(device.node)])
    message, _ = device.fetched()
    run.grid.forget([sent])
    device.connection.push(Message(RecordDict(), reply_to=message), 0.1)
    assert nothing_left(link)


def test_a_run_outlives_a_pause_of_the_process(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(link, connect)
    now = in_memory_corestate.now
    monkeypatch.setattr(in_memory_corestate, "now", lambda: now() + timedelta(days=7))
    (sent,) = run.grid.push_messages([order(device.node)])
    assert sent
    device.answer()
    (reply,) = run.grid.pull_messages([sent])
    assert not reply.has_error()


def test_a_stop_abandons_the_round_that_waits(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    stop = threading.Event()
    grid = EagerGrid(run.grid, stop=stop)
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(Stopped):
        grid.send_and_receive([order(device.node)], timeout=30)


def test_a_reply_that_is_no_message_is_an_error_and_not_the_end(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Device(link, connect)
    (sent,) = run.grid.push_messages([order(device.node)])
    message, _ = device.fetched()
    reply = Message(RecordDict(), reply_to=message)
    # Its root is a record, under a true hash.
    root = RecordDict({"config": ConfigRecord({"a": 1})})
    reply.metadata.__dict__["_message_id"] = root.object_id
    request = PushMessagesRequest(
        node=device.connection._node,
        messages_list=[message_to_proto(reply)],
        message_object_trees=[get_object_tree(root)],
        clientapp_runtime_list=[0.1],
    )
    session = device.connection._client.PushMessages(request).session_id
    parts = ((object_id, part.deflate()) for object_id, part in get_all_nested_objects(root).items())
    device.connection._push_parts(message.metadata.run_id, session, parts)
    (error,) = wait_for_reply(run, sent)
    assert error.error.reason == "the reply cannot be read"
    assert nothing_left(link)
