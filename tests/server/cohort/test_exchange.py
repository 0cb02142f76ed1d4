"""Orders out, replies in: what counts, what is rejected, and in which order."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from perennial.common.wire.orders import Order
from perennial.common.wire.protocol import ProtocolError
from perennial.common.wire.updates import Losses
from perennial.server.cohort.exchange import Exchange, weights_of

pytestmark = pytest.mark.usefixtures("flower_identity")


def read(content: RecordDict, order: Order) -> int:
    value: Any = content["answer"]["value"]
    if value < 0:
        raise ProtocolError("value is negative")
    return int(value)


def an_exchange(**clients: int) -> Exchange[int]:
    """Nodes n5=(0) and so on, by the first client of each."""
    orders = {int(name[1:]): Order(1, 0, 0, (client,), False) for name, client in clients.items()}
    exchange = Exchange(orders, {}, read, "train", 5.0)
    for message in exchange.send():
        message.metadata.__dict__["_message_id"] = str(uuid4())
    return exchange


def answer(message: Message, value: int) -> Message:
    return Message(RecordDict({"answer": ConfigRecord({"value": value})}), reply_to=message)


def test_replies_are_sorted_by_client_whatever_order_they_come_in() -> None:
    exchange = an_exchange(n5=2, n6=0, n7=1)
    found = exchange.receive([answer(message, 1) for message in exchange.messages])
    assert list(found.replies) == [6, 7, 5]
    assert found.rejections == ()


def test_messages_carry_the_round() -> None:
    message = an_exchange(n5=2).messages[0]
    assert (message.metadata.group_id, message.metadata.dst_node_id) == ("1", 5)


def test_an_order_outlives_the_wait_for_its_reply() -> None:
    exchange = an_exchange(n5=2)
    assert exchange.messages[0].metadata.ttl > exchange.timeout


def test_the_first_answer_counts() -> None:
    exchange = an_exchange(n5=0)
    message = exchange.messages[0]
    assert exchange.receive([answer(message, 1), answer(message, 2)]).replies == {5: 1}
    assert exchange.receive([answer(message, -1), answer(message, 2)]).replies == {}


def test_answers_to_other_messages_are_ignored() -> None:
    exchange, other = an_exchange(n5=0), an_exchange(n5=0)
    found = exchange.receive([answer(other.messages[0], 9)])
    assert found.replies == {}
    assert [rejection.reason for rejection in found.rejections] == ["no reply in time"]


def test_only_an_answer_that_is_wrong_is_held_against_the_node() -> None:
    exchange = an_exchange(n5=0, n6=1, n7=2, n8=3)
    error = Message(Error(5, "node gone"), reply_to=exchange.messages[1])
    found = exchange.receive([answer(exchange.messages[0], -1), error, answer(exchange.messages[3], 4)])
    assert [(one.node, one.clients, one.reason, one.bad) for one in found.rejections] == [
        (5, (0,), "value is negative", True),
        (6, (1,), "node error 5: node gone", False),
        (7, (2,), "no reply in time", False),
    ]
    assert found.replies == {8: 4}


@pytest.mark.parametrize("reason", [None, "", "  \n "])
def test_an_error_without_reason_says_so(reason: Any) -> None:
    exchange = an_exchange(n5=0)
    found = exchange.receive([Message(Error(5, reason), reply_to=exchange.messages[0])])
    assert found.rejections[0].reason == "node error 5: no reason given"


def test_weights_are_clients_or_examples() -> None:
    counts = [Losses(3, 10), Losses(1, 50)]
    assert weights_of(counts, "clients") == [3, 1]
    assert weights_of(counts, "examples") == [10, 50]
