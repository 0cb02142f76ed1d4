"""All parts of a message in one request, and a request that waits for a message.

A message is a tree of parts (two per array of a model), and Flower moves every part in an HTTP request of its own:
ninety of them, several milliseconds each, for one round of one node. ``routes`` moves them together, under the same
checks. A node that talks to a stock SuperLink, and a stock SuperNode, go part by part.

A stock node asks every three seconds whether there is an order. ``WAIT`` asks once and is answered when there is one,
or after ``PATIENCE`` seconds.

A body is a row of parts, each as: SHA-256 of the content (32 bytes), its length (8 bytes, big-endian), the content.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

WAIT = "/v1/fleet/perennial/wait"
PULL, PUSH = "/v1/fleet/perennial/pull-parts", "/v1/fleet/perennial/push-parts"
# Shorter than a node's read timeout.
PATIENCE = 5.0
MEDIA_TYPE = "application/octet-stream"
# The parts of a message larger than this are sent in several requests, so that neither side holds a large body.
MOST_BYTES = 32 * 2**20
# In place of an object id: the part that says who sends.
NOBODY = "00" * 32
_HEAD = struct.Struct(">32sQ")


def pack(parts: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the body of (object id, content) pairs."""
    return b"".join(_HEAD.pack(bytes.fromhex(object_id), len(content)) + content for object_id, content in parts)


def unpack(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the (object id, content) pairs of a body; ValueError where it is cut off."""
    position = 0
    while position < len(body):
        if position + _HEAD.size > len(body):
            raise ValueError("a part's head is cut off")
        digest, length = _HEAD.unpack_from(body, position)
        position += _HEAD.size
        if position + length > len(body):
            raise ValueError("a part's content is cut off")
        yield digest.hex(), body[position : position + length]
        position += length


def split(parts: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the parts in lists of at most ``MOST_BYTES`` (or of one part that is larger)."""
    some: list[tuple[str, bytes]] = []
    size = 0
    for object_id, content in parts:
        if some and size + len(content) > MOST_BYTES:
            yield some
            some, size = [], 0
        some.append((object_id, content))
        size += len(content)
    if some:
        yield some
