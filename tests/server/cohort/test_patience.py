"""When a round ends that has stragglers, by seconds that the tests pass in."""

from __future__ import annotations

import math

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from perennial.server.cohort.patience import MOMENT, Patience
from perennial.server.link.local_grid import named, take_identity


@pytest.fixture(autouse=True)
def identity() -> None:
    take_identity()


def orders(count: int, kind: str = "train", clients: int = 1) -> list[Message]:
    content = RecordDict({"order": ConfigRecord({"clients": list(range(clients))})})
    made = [Message(content, 2 + number, kind) for number in range(count)]
    for message in made:
        named(message)
    return made


def reply(order: Message) -> Message:
    return Message(RecordDict(), reply_to=order)


def after(patience: Patience, seconds: float, count: int = 20) -> None:
    """Let one exchange pass in which every answer took so long."""
    sent = orders(count)
    watch = patience.watch(sent)
    for order in sent:
        watch.heard(reply(order), seconds)


def test_without_a_fair_time_everybody_is_waited_for() -> None:
    patience = Patience(0.0, 0.5)
    after(patience, 2.0)
    sent = orders(10)
    watch = patience.watch(sent)
    for order in sent[:9]:
        watch.heard(reply(order), 0.1)
    assert watch.left(1e6) == math.inf


def test_the_first_exchange_waits_for_everybody() -> None:
    sent = orders(10)
    watch = Patience(1.5, 0.5).watch(sent)
    for order in sent[:9]:
        watch.heard(reply(order), 0.1)
    assert watch.left(1e6) == math.inf


def test_with_a_quorum_the_rest_has_a_fair_time_from_the_start_on() -> None:
    patience = Patience(1.5, 0.5)
    after(patience, 4.0)
    sent = orders(10)
    watch = patience.watch(sent)
    for order in sent[:4]:
        watch.heard(reply(order), 1.0)
    assert watch.left(100.0) == math.inf
    watch.heard(reply(sent[4]), 1.0)
    assert watch.left(2.0) == 4.0
    assert watch.left(7.0) == 0.0


def test_a_quorum_that_comes_late_ends_the_exchange() -> None:
    patience = Patience(1.5, 0.5)
    after(patience, 4.0)
    sent = orders(2)
    watch = patience.watch(sent)
    watch.heard(reply(sent[0]), 50.0)
    assert watch.left(50.0) == 0.0


def test_a_quorum_counts_clients_and_no_errors() -> None:
    patience = Patience(1.5, 0.5)
    after(patience, 4.0)
    small, large = orders(2, clients=2), orders(1, clients=5)
    watch = patience.watch([*small, *large])
    for order in small:
        watch.heard(reply(order), 0.1)
    watch.heard(Message(Error(2, "broken"), reply_to=large[0]), 0.1)
    assert watch.left(100.0) == math.inf
    watch.heard(reply(large[0]), 0.1)
    assert watch.left(100.0) == 0.0


def test_nobody_is_late_within_a_moment() -> None:
    patience = Patience(1.5, 0.5)
    after(patience, 0.001)
    assert patience.fair("train") == MOMENT


def test_kinds_of_messages_are_told_apart_and_questions_have_no_quorum() -> None:
    patience = Patience(1.5, 0.5)
    asked = orders(3, "query")
    patience.watch(asked).heard(reply(asked[0]), 4.0)
    assert (patience.fair("query"), patience.fair("train")) == (6.0, math.inf)
    assert patience.watch(asked).left(2.0) == 4.0


def test_a_crowd_that_is_asked_who_it_is_has_time_as_long_as_answers_come() -> None:
    patience = Patience(1.5, 0.5)
    first, crowd = orders(1, "query"), orders(1000, "query")
    patience.watch(first).heard(reply(first[0]), 0.05)
    watch = patience.watch(crowd)
    for number, order in enumerate(crowd[:500], start=1):
        watch.heard(reply(order), 0.02 * number)
    assert watch.left(10.0) == MOMENT
    assert watch.left(10.0 + MOMENT) == 0.0


def test_of_a_cohort_that_was_drawn_too_large_the_first_ones_are_enough() -> None:
    sent = orders(11)
    watch = Patience(0.0, 0.5, oversample=0.1).watch(sent)
    for order in sent[:9]:
        watch.heard(reply(order), 0.1)
    assert watch.left(0.1) == math.inf
    watch.heard(reply(sent[9]), 0.1)
    assert watch.left(0.1) == 0.0


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50), st.floats(1, 10))
def test_the_fair_time_is_between_a_moment_and_the_slowest_answer_times_the_factor(
    took: list[float], factor: float
) -> None:
    take_identity()
    patience = Patience(factor, 0.5)
    sent = orders(len(took))
    watch = patience.watch(sent)
    for order, seconds in zip(sent, took, strict=True):
        watch.heard(reply(order), seconds)
    assert MOMENT <= patience.fair("train") <= max(MOMENT, factor * max(took))
