"""Which clients a key is for: lists in key files, and what nodes may claim by them."""

from __future__ import annotations

import pytest

from perennial.server.link.bindings import Bindings, read_clients


def test_a_list_has_ranges_and_single_clients() -> None:
    assert read_clients("7") == {7}
    assert read_clients("0-3,7,9-9") == {0, 1, 2, 3, 7, 9}


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-", "0-3, 7", "0x3", "12345678901"])
def test_what_is_no_list_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no list of clients; write it as clients=0-3,7"):
        read_clients(text)


def test_a_list_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="names more than 100,000 clients"):
        read_clients("0-9999999999")
    assert len(read_clients("0-99999")) == 100_000


def test_a_key_with_a_list_claims_these_clients_alone() -> None:
    bindings = Bindings()
    bindings.bind(5, frozenset({0, 1, 2}))
    assert bindings.problem(5, (0, 2)) == ""
    assert bindings.problem(5, (2, 7, 9)) == "it claims client 7, and its key is for clients 0, 1, 2 alone"


def test_a_long_list_is_shortened() -> None:
    bindings = Bindings()
    bindings.bind(5, frozenset(range(100)))
    assert bindings.problem(5, (100,)).endswith("its key is for clients 0, 1, 2, 3, 4, 5, 6, 7, … alone")


def test_what_a_list_names_no_key_without_it_may_claim() -> None:
    bindings = Bindings()
    bindings.bind(5, frozenset({0, 1}))
    bindings.bind(6, None)
    assert bindings.problem(6, (1, 2)) == "client 1 is for another key"
    assert bindings.problem(6, (2, 3)) == ""


def test_two_keys_may_share_a_client_and_it_is_free_when_no_list_names_it() -> None:
    bindings = Bindings()
    bindings.bind(5, frozenset({0, 1}))
    bindings.bind(6, frozenset({1}))
    assert bindings.problem(5, (1,)) == bindings.problem(6, (1,)) == ""
    bindings.bind(5, None)
    assert bindings.problem(7, (0,)) == ""
    assert bindings.problem(7, (1,)) == "client 1 is for another key"
    bindings.bind(6, None)
    assert bindings.problem(7, (1,)) == ""
