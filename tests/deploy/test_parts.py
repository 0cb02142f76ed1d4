"""Parts of a message in one request."""

from __future__ import annotations

import httpx
import pytest

from perennial.common.wire import parts
from perennial.server.link.listener import Listener


def test_parts_come_back_as_they_were_packed() -> None:
    pairs = [("ab" * 32, b"one"), ("cd" * 32, b""), (parts.NOBODY, b"x" * 1000)]
    assert list(parts.unpack(parts.pack(pairs))) == pairs


@pytest.mark.parametrize("cut", [1, 39, 41, 42])
def test_a_body_that_is_cut_off_is_an_error(cut: int) -> None:
    body = parts.pack([("ab" * 32, b"one")])
    with pytest.raises(ValueError, match="cut off"):
        list(parts.unpack(body[:cut]))


def test_parts_are_split_into_bodies_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MOST_BYTES", 10)
    pairs = [("ab" * 32, b"x" * size) for size in (4, 6, 1, 11, 2)]
    assert [[len(content) for _, content in some] for some in parts.split(pairs)] == [[4, 6], [1], [11], [2]]


def test_garbage_is_no_row_of_parts(listener: Listener) -> None:
    assert httpx.post(f"http://127.0.0.1:{listener.port}{parts.PUSH}", content=b"garbage").status_code == 400


def test_no_part_but_the_first_is_read_before_it_is_known_who_sends(listener: Listener) -> None:
    """A body whose second part is cut off is refused for its sender, not for the part: nobody has looked at that."""
    body = parts.pack([(parts.NOBODY, b"")]) + b"cut off"
    assert httpx.post(f"http://127.0.0.1:{listener.port}{parts.PUSH}", content=body).status_code == 401
