"""Who is there, and who takes part."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest
from flwr.app import Error, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import RunError
from perennial.common.wire import protocol
from perennial.common.wire.protocol import Identity
from perennial.server.cohort.exchange import Answered, Rejection
from perennial.server.cohort.roster import Quarantine, Roster
from perennial.server.strategies.grids import AroundGrid
from tests.server.conftest import FakeGrid

pytestmark = pytest.mark.usefixtures("flower_identity")


def a_roster(grid: FakeGrid, nodes: int = 1, **keys: Any) -> Roster:
    roster = Roster(RunConfig(node_timeout=0.05, **keys), 2)
    roster.gather(grid, nodes)
    return roster


class Odd(FakeGrid):
    """Answers queries with what ``odd`` has for a node."""

    odd: dict[int, Any]

    def _answer(self, message: Any) -> Any:
        honest = super()._answer(message)
        return self.odd.get(message.metadata.dst_node_id, honest)


def odd_grid(nodes: dict[int, tuple[int, ...]], odd: dict[int, Any]) -> Odd:
    grid = Odd(nodes)
    grid.odd = odd
    return grid


def test_everyone_takes_part_by_default() -> None:
    roster = a_roster(FakeGrid({5: (3, 1), 9: (0, 2)}))
    assert roster.cohort(1, 0) == {9: (0, 2), 5: (1, 3)}


def test_each_node_is_asked_once() -> None:
    grid = FakeGrid({5: (0,), 9: (1,)})
    roster = a_roster(grid)
    roster.refresh(grid)
    grid.nodes[7] = (2,)
    roster.refresh(grid)
    assert grid.queries == [5, 9, 7]


def test_nodes_that_leave_are_forgotten_and_may_come_back_with_another_id() -> None:
    grid = FakeGrid({5: (0,), 9: (1,)})
    roster = a_roster(grid)
    del grid.nodes[5]
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {9: (1,)}
    grid.nodes[77] = (0,)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {77: (0,), 9: (1,)}


def test_a_node_that_failed_is_asked_again_and_may_host_others_by_now() -> None:
    grid = FakeGrid({5: (0,), 9: (1,)})
    roster = a_roster(grid)
    grid.nodes[5] = (0, 2)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {5: (0,), 9: (1,)}
    roster.doubt(5)
    roster.refresh(grid)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {5: (0, 2), 9: (1,)}
    assert grid.queries == [5, 9, 5]


def test_a_doubted_node_cannot_take_what_another_has() -> None:
    grid = FakeGrid({5: (0,), 9: (1,)})
    roster = a_roster(grid)
    grid.nodes[5] = (0, 1)
    roster.doubt(5)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {9: (1,)}


def test_a_doubted_node_that_says_nothing_stays_what_it_was() -> None:
    grid = odd_grid({5: (0,)}, {})
    roster = a_roster(grid)
    grid.odd[5] = None
    roster.doubt(5)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {5: (0,)}


@pytest.mark.parametrize("answer", [protocol.write_query(), Error(2, "other shards")], ids=["nonsense", "error"])
def test_a_doubted_node_that_cannot_say_who_it_is_takes_part_no_more(answer: RecordDict | Error) -> None:
    grid = odd_grid({5: (0,), 9: (1,)}, {})
    roster = a_roster(grid)
    grid.odd[5] = answer
    roster.doubt(5)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {9: (1,)}


class Bound(FakeGrid):
    """A grid that knows the clients of one key."""

    def claim_problem(self, node: int, clients: Sequence[int]) -> str:
        return f"it claims client {clients[-1]}, and its key is for client 0 alone" if node == 5 and clients[1:] else ""


def test_a_node_that_claims_what_its_key_is_not_for_is_refused(warned: pytest.LogCaptureFixture) -> None:
    grid = Bound({5: (0, 1), 9: (2,)})
    roster = a_roster(grid)
    assert roster.cohort(1, 0) == {9: (2,)}
    assert "node 5 is refused: it claims client 1, and its key is for client 0 alone" in warned.messages
    # Also through what the strategies put around a grid.
    assert a_roster(AroundGrid(grid)).cohort(1, 0) == {9: (2,)}


def test_too_few_nodes_end_the_run_with_counts_and_remedy() -> None:
    with pytest.raises(
        RunError, match=r"1 of 2 nodes appeared within 0.05 s; start more clients, lower nodes, or raise"
    ):
        a_roster(FakeGrid({5: (0,)}), nodes=2)


def test_a_client_hosted_twice_belongs_to_one_node_and_the_other_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    with caplog.at_level(logging.WARNING, "perennial"):
        roster = a_roster(FakeGrid({5: (0, 1), 9: (1, 2)}))
    assert roster.cohort(1, 0) == {5: (0, 1)}
    assert "node 9 is refused: client 1 is hosted by another node that is online" in caplog.text


def test_a_refused_node_is_asked_again_when_the_clients_first_node_has_left() -> None:
    grid = FakeGrid({5: (0, 1), 9: (0, 1)})
    roster = a_roster(grid)
    assert roster.cohort(1, 0) == {5: (0, 1)}
    del grid.nodes[5]
    roster.refresh(grid)
    assert roster.cohort(2, 0) == {9: (0, 1)}


def test_a_node_whose_shards_cover_too_few_blocks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    grid = odd_grid({5: (0,), 9: (1,)}, {9: protocol.write_identity(Identity((1,), 1))})
    roster = a_roster(grid)
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {5: (0,)}
    assert grid.queries == [5, 9]


def test_a_node_that_is_not_taken_is_asked_again_after_ever_longer_rests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    grid = odd_grid({5: (0,), 7: (1,), 9: (2,)}, {7: protocol.write_query(), 9: Error(2, "starting")})
    roster = a_roster(grid)
    asked = []
    for _ in range(40):
        now += 0.5
        del grid.queries[:]
        roster.refresh(grid)
        if grid.queries:
            asked.append(now - 1000)
            assert grid.queries == [7, 9]
    assert asked == [1, 3, 7, 15]
    assert roster.cohort(1, 0) == {5: (0,)}
    assert len(caplog.records) == 2
    grid.odd = {}
    now += 100
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {5: (0,), 7: (1,), 9: (2,)}


def test_quarantine_does_not_leave_a_run_without_anybody() -> None:
    roster = a_roster(FakeGrid({5: (0,), 9: (1,)}), quarantine_after=1, quarantine_rounds=10)
    roster.quarantine.reject(0, 1)
    assert roster.held(2) == (5,)
    assert roster.cohort(2, 0) == {9: (1,)}
    roster.quarantine.reject(1, 2)
    assert roster.held(2) == ()
    assert roster.cohort(2, 0) == {5: (0,), 9: (1,)}


def test_a_cohort_is_a_fraction_of_the_clients_and_repeats_from_seed_and_round() -> None:
    nodes = {5: tuple(range(0, 1000, 2)), 9: tuple(range(1, 1000, 2))}
    one, again, other = (a_roster(FakeGrid(dict(nodes)), participation=0.3, seed=seed) for seed in (1, 1, 2))
    drawn = [{c for clients in roster.cohort(3, 0).values() for c in clients} for roster in (one, again, other)]
    assert [len(clients) for clients in drawn] == [300, 300, 300]
    assert drawn[0] == drawn[1] != drawn[2]
    assert one.cohort(3, 0) != one.cohort(4, 0)
    assert one.cohort(3, 0) != one.cohort(3, 1)


def test_a_cohort_depends_on_clients_and_not_on_nodes() -> None:
    few = a_roster(FakeGrid({5: tuple(range(20))}), participation=0.5)
    many = a_roster(FakeGrid({100 - client: (client,) for client in range(20)}), participation=0.5)
    for server_round in range(1, 6):
        drawn = [sorted(c for cs in roster.cohort(server_round, 0).values() for c in cs) for roster in (few, many)]
        assert drawn[0] == drawn[1]


def test_every_client_is_drawn_sooner_or_later() -> None:
    roster = a_roster(FakeGrid({5: tuple(range(20))}), participation=0.1)
    assert {c for r in range(1, 200) for c in roster.cohort(r, 0)[5]} == set(range(20))


def test_the_smallest_cohort_is_one_client() -> None:
    roster = a_roster(FakeGrid({5: (0, 1, 2)}), participation=0.01)
    assert [len(clients) for clients in roster.cohort(1, 0).values()] == [1]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 50), st.floats(0.01, 1), st.integers(1, 1000))
def test_cohorts_name_each_client_once_at_its_own_node(clients: int, participation: float, server_round: int) -> None:
    nodes = {node: tuple(range(node, clients, 3)) for node in range(min(3, clients))}
    roster = a_roster(FakeGrid(nodes), participation=participation)
    cohort = roster.cohort(server_round, 0)
    assert all(set(drawn) <= set(nodes[node]) and list(drawn) == sorted(drawn) for node, drawn in cohort.items())
    assert sum(map(len, cohort.values())) == max(1, round(participation * clients))


def test_a_quarantined_node_is_left_out_until_its_time_is_over() -> None:
    roster = a_roster(FakeGrid({5: (0, 1), 9: (2,)}), quarantine_after=2, quarantine_rounds=3)
    for server_round in (1, 2):
        roster.quarantine.reject(roster.first_client(5), server_round)
    assert [set(roster.cohort(server_round, 0)) for server_round in (2, 5, 6)] == [{9}, {9}, {5, 9}]


def test_quarantine_forgives_after_a_good_answer() -> None:
    quarantine = Quarantine(2, 3)
    quarantine.reject(0, 1)
    quarantine.accept(0)
    quarantine.reject(0, 2)
    assert not quarantine.holds(0, 3)


def test_quarantine_after_zero_never_holds() -> None:
    quarantine = Quarantine(0, 3)
    for server_round in range(10):
        quarantine.reject(0, server_round)
    assert not quarantine.holds(0, 9)


class Returning(FakeGrid):
    """Says which nodes have begun a new session."""

    back: set[int]

    def returned(self) -> set[int]:
        found, self.back = self.back, set()
        return found


@pytest.mark.parametrize(
    ("rejection", "held"),
    [
        (Rejection(5, (0,), "no reply in time"), ()),
        (Rejection(5, (0,), "it left", failed=True, left=True), ()),
        (Rejection(5, (0,), "NaN", bad=True), (5,)),
        (Rejection(5, (0,), "it raised", failed=True, raised=True), (5,)),
    ],
)
def test_a_node_that_was_silent_and_nothing_worse_takes_part_once_it_begins_a_new_session(
    rejection: Rejection, held: tuple[int, ...]
) -> None:
    grid = Returning({5: (0,), 9: (1,)})
    grid.back = set()
    roster = a_roster(grid, quarantine_after=1, quarantine_rounds=100)
    roster.judge(Answered({}, {}, (rejection,)), 1, trained=True)
    roster.refresh(grid)
    assert roster.held(2) == (5,)
    grid.back = {5}
    roster.refresh(grid)
    assert roster.held(2) == held


def test_a_quarantine_of_a_checkpoint_that_knows_no_reasons_is_not_forgiven() -> None:
    quarantine = Quarantine(1, 10)
    quarantine.restore({"strikes": {}, "until": {"0": 9}, "times": {"0": 1}})
    quarantine.welcome(0)
    assert quarantine.holds(0, 9)


def test_nobody_left_gives_an_empty_cohort() -> None:
    grid = FakeGrid({5: (0,)})
    roster = a_roster(grid, participation=0.5)
    grid.nodes.clear()
    roster.refresh(grid)
    assert roster.cohort(1, 0) == {}
