"""Who is online and what becomes of orders, by a clock that the tests turn."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from perennial.server.link.fleet_keys import Refusal
from perennial.server.link.fleet_state import EXPIRED, GRACE, MOST_HANDED, OFFLINE, SILENCE, Errand, FleetState

NODE, OTHER = 7, 8


def order(name: str = "a", node: int = NODE, *, deadline: float = 1000.0, room: int = 100) -> Errand:
    return Errand(name, node, [b"model"], room, deadline)


def outcome(state: FleetState, name: str = "a") -> str:
    (found,) = state.take({name})
    return found.lost or (found.body or b"").decode()


def test_orders_are_handed_out_one_by_one_and_answered() -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    for name in "ab":
        state.push(order(name))
    for name in "ab":
        handed = state.hand_out(node)
        assert handed is not None
        assert handed.id == name
        assert state.expect(node, name, 5) is handed
        assert state.answer(node, handed, name.encode())
    assert state.hand_out(node) is None
    assert [one.body for one in state.take({"a", "b"})] == [b"a", b"b"]
    assert len(state) == 0


def test_an_order_to_a_node_that_is_not_there_is_lost_at_once() -> None:
    state = FleetState()
    state.push(order())
    assert outcome(state) == OFFLINE


def test_a_node_is_offline_after_a_silence_and_its_orders_are_lost() -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    state.push(order())
    state.heard(node, 10)
    assert state.tick(10 + SILENCE - 0.1) == []
    assert state.tick(10 + SILENCE) == [NODE]
    assert not state.online
    assert outcome(state) == OFFLINE


def test_a_node_whose_request_is_served_is_not_silent() -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    node.busy += 1
    assert state.tick(10 * SILENCE) == []
    node.busy -= 1
    assert state.tick(11 * SILENCE) == [NODE]


@pytest.mark.parametrize("returns", [True, False])
def test_a_node_that_hung_up_has_a_moment_to_come_back(returns: bool) -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    state.push(order())
    state.hand_out(node)
    state.hung_up(NODE, 10)
    if returns:
        state.heard(node, 10 + GRACE / 2)
    assert state.tick(10 + GRACE) == ([] if returns else [NODE])


def test_a_node_that_restarts_is_handed_its_order_again() -> None:
    state = FleetState()
    for _ in range(MOST_HANDED):
        node = state.come(NODE, 0)
        if not len(state):
            state.push(order())
        assert state.hand_out(node) is not None
    assert state.hand_out(state.come(NODE, 0)) is None
    assert "3 times" in outcome(state)


def test_nodes_that_have_begun_a_session_are_told_once_if_they_are_still_here() -> None:
    state = FleetState()
    state.come(NODE, 0)
    state.come(NODE + 1, 0)
    state.leave(NODE + 1)
    assert state.returned() == {NODE}
    assert state.returned() == set()
    state.come(NODE, 1)
    assert state.returned() == {NODE}


def test_a_node_answers_in_a_new_session_what_it_was_ordered_in_the_old_one() -> None:
    state = FleetState()
    state.push(order())
    state.take({"a"})
    node = state.come(NODE, 0)
    state.push(order())
    handed = state.hand_out(node)
    node = state.come(NODE, 1)
    assert state.expect(node, "a", 5) is handed


def test_nobody_answers_an_order_of_another_or_one_that_was_not_handed_out() -> None:
    state = FleetState()
    node, other = state.come(NODE, 0), state.come(OTHER, 0)
    state.push(order())
    for who in (node, other):
        with pytest.raises(Refusal) as refused:
            state.expect(who, "a", 5)
        assert refused.value.status == 410
    state.hand_out(node)
    with pytest.raises(Refusal):
        state.expect(other, "a", 5)
    assert state.expect(node, "a", 5)


def test_an_answer_whose_confirmation_was_lost_may_be_sent_again() -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    state.push(order())
    handed = state.hand_out(node)
    assert handed is not None
    state.answer(node, handed, b"x")
    assert state.expect(node, "a", 5) is None
    state.take({"a"})
    assert state.expect(node, "a", 5) is None


def test_a_reply_that_is_too_large_is_refused_before_it_is_read_and_the_order_is_lost() -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    state.push(order(room=10))
    state.hand_out(node)
    with pytest.raises(Refusal, match="at most 10") as refused:
        state.expect(node, "a", 11)
    assert refused.value.status == 413
    assert "11 bytes" in outcome(state)


@pytest.mark.parametrize("end", ["forgotten", "expired"])
def test_a_late_reply_is_dropped(end: str) -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    state.push(order(deadline=10))
    handed = state.hand_out(node)
    assert handed is not None
    node.busy = 1
    if end == "forgotten":
        state.forget(["a"])
    else:
        state.tick(11)
        assert outcome(state) == EXPIRED
    assert not state.answer(node, handed, b"late")
    with pytest.raises(Refusal):
        state.expect(node, "a", 4)


def test_replies_free_their_bytes_when_they_are_taken_or_forgotten() -> None:
    freed: list[int] = []
    state = FleetState(freed.append)
    node = state.come(NODE, 0)
    for name in "ab":
        state.push(order(name))
        handed = state.hand_out(node)
        assert handed is not None
        state.answer(node, handed, b"x" * (1 + len(freed)))
    state.take({"a"})
    state.forget(["b"])
    assert freed == [1, 1]
    assert handed is not None
    assert handed.pieces == ()


def test_what_is_taken_one_by_one_comes_in_the_order_of_arrival() -> None:
    state = FleetState()
    for node in (1, 2, 3):
        state.come(node, 0)
        state.push(order(f"o{node}", node))
    for number in (3, 1, 2):
        handed = state.hand_out(state.online[number])
        assert handed is not None
        state.answer(state.online[number], handed, b"")
    assert [state.take({"o1", "o3"}, 1)[0].id for _ in range(2)] == ["o3", "o1"]


def test_the_heap_does_not_grow_with_the_rounds() -> None:
    state = FleetState()
    node = state.come(NODE, 0)
    for number in range(10_000):
        state.push(order(str(number), deadline=1e9))
        state.hand_out(node)
        state.hung_up(NODE, number / 1000)
        state.heard(node, number / 1000)
        state.forget([str(number)])
    assert len(state._due) < 2000


class Fleet(RuleBasedStateMachine):
    """Whatever happens in whatever order, an order has one outcome, and nobody works for a node that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.number, self.held = 0.0, 0, 0
        self.state = FleetState(self.free)
        self.outcomes: dict[str, int] = {}
        self.forgotten: set[str] = set()

    def free(self, size: int) -> None:
        self.held -= size

    nodes = st.integers(1, 3)

    @rule(node=nodes)
    def come(self, node: int) -> None:
        self.state.come(node, self.now)

    @rule(node=nodes)
    def leave(self, node: int) -> None:
        self.state.leave(node)

    @rule(node=nodes)
    def hang_up(self, node: int) -> None:
        self.state.hung_up(node, self.now)

    @rule(node=nodes, life=st.floats(0, 100))
    def push(self, node: int, life: float) -> None:
        self.number += 1
        self.outcomes[str(self.number)] = 0
        self.state.push(order(str(self.number), node, deadline=self.now + life))

    @rule(node=nodes)
    def ask(self, node: int) -> None:
        if there := self.state.online.get(node):
            self.state.heard(there, self.now)
            self.state.hand_out(there)

    @rule(node=nodes, name=st.integers(1, 20), size=st.integers(0, 5))
    def answer(self, node: int, name: int, size: int) -> None:
        if there := self.state.online.get(node):
            try:
                handed = self.state.expect(there, str(name), size)
            except Refusal:
                return
            assert handed is None or handed.node == node
            if handed and self.state.answer(there, handed, bytes(size)):
                self.held += size

    @rule(names=st.sets(st.integers(1, 20).map(str)))
    def take(self, names: set[str]) -> None:
        for one in self.state.take(names):
            self.outcomes[one.id] += 1
            assert one.id not in self.forgotten

    @rule(names=st.sets(st.integers(1, 20).map(str)))
    def forget(self, names: set[str]) -> None:
        self.state.forget(names)
        self.forgotten |= names & self.outcomes.keys()

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.state.tick(self.now)

    @invariant()
    def an_order_has_at_most_one_outcome(self) -> None:
        assert all(count <= 1 for count in self.outcomes.values())
        assert self.held >= 0

    @invariant()
    def nobody_is_online_beyond_its_silence(self) -> None:
        assert all(node.silent_at > self.now or node.watched <= node.silent_at for node in self.state.online.values())

    def teardown(self) -> None:
        """In the end everything has an outcome, and nothing is held."""
        self.state.tick(self.now + 10_000)
        assert not self.state.online
        for one in self.state.take(self.outcomes.keys()):
            self.outcomes[one.id] += 1
        missing = {name for name, count in self.outcomes.items() if not count} - self.forgotten
        assert not missing
        assert len(self.state) == self.held == 0


TestFleet = Fleet.TestCase
TestFleet.settings = settings(deadline=None, max_examples=60)
