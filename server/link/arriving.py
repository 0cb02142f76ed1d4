"""A node's reply while it arrives: the parts that the node has announced, within what the order allows it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from flwr.app import Array, Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    is_valid_sha256_hash,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

# For a reply's metrics, metadata and heads, or for the ids of a hundred thousand clients.
_SPARE = 2**20
# The description of an array: its name, its shape, and the ids and heads of its parts.
_PER_ARRAY = 2048
# What a part costs that is announced and never comes.
_PER_PART = 256
_CHUNK = b"ArrayChunk "


class BadReply(Exception):
    """A reply that is not taken, and why."""


@dataclass(frozen=True)
class Allowance:
    """How many bytes a reply may take: those of the arrays of its order, since it answers with the models it was sent.

    data: of arrays. rest: of everything else, which is parsed and grows by that; so it has a bound of its own.
    """

    data: int
    rest: int

    @classmethod
    def of(cls, order: Message) -> Allowance:
        # The same array in two records counts twice: it comes back as two.
        arrays = [array for record in order.content.array_records.values() for array in record.values()]
        # What goes out as float16 may come back as float32.
        data = sum(len(array.data) * (2 if array.dtype == "float16" else 1) for array in arrays)
        return cls(data + _SPARE, len(arrays) * _PER_ARRAY + _SPARE)


def names(tree: ObjectTree) -> set[str]:
    """Return the ids of all parts of a message."""
    ids, rest = set(), [tree]
    while rest:
        part = rest.pop()
        ids.add(part.object_id)
        rest.extend(part.children)
    return ids


class ArrivingReply:
    """Parts by id. Nothing that a node announces or sends raises, except out of ``read``.

    Of the tree that a node announces, only the names count: what belongs to what is told by the parts themselves, which
    are named by their hashes. So a tree cannot be deep, cyclic or endless, nor say anything of another message's parts.
    """

    def __init__(self, allowance: Allowance) -> None:
        # Names the upload in which the node sends the parts.
        self.upload = ""
        self._allowance, self._data, self._rest = allowance, 0, 0
        self._id, self._problem = "", ""
        self._parts: dict[str, bytes] = {}

    def announce(self, reply_id: str, ids: set[str]) -> list[str]:
        """Return the ids of the parts to send; the same reply may be announced again, another may not."""
        if reply_id not in ids or not all(map(is_valid_sha256_hash, ids)):
            self._refuse("its parts are not named as Flower names them")
        elif not self._id:
            self._id, self._rest = reply_id, _PER_PART * len(ids)
            self._parts = dict.fromkeys(ids, b"")
            self._check_size(self._data)
        elif (reply_id, ids) != (self._id, set(self._parts)):
            self._refuse("it was announced twice, and differently")
        return [object_id for object_id, content in self._parts.items() if not content]

    def put(self, object_id: str, content: bytes) -> bool:
        """Keep an announced part, whose hash is its id; return whether it was taken."""
        if self._parts.get(object_id) != b"":
            return False
        if content.startswith(_CHUNK):
            self._data += len(content)
        else:
            self._rest += len(content)
        self._parts[object_id] = content
        self._check_size(self._data)
        return not self._problem

    @property
    def ready(self) -> bool:
        """Whether there is something to read: all parts, or a reason to refuse them."""
        return bool(self._problem) or (bool(self._id) and all(self._parts.values()))

    def read(self) -> Message:
        """Return the message. Whatever it raises is the node's doing; ``BadReply`` is for the operator to read."""
        if not self._problem:
            self._check_size(sum(map(self._data_of, self._parts.values())))
        if self._problem:
            raise BadReply(f"the reply is refused: {self._problem}")
        message = inflate_object_from_contents(self._id, dict(self._parts))
        if not isinstance(message, Message):
            raise TypeError(f"the root is of type {type(message).__name__}")
        message.metadata.__dict__["_message_id"] = self._id
        return message

    def _data_of(self, content: bytes) -> int:
        """Return how large an array a part describes: it may name one chunk many times."""
        if not content.startswith(b"Array "):
            return 0
        ids = get_object_children_ids_from_object_content(content)
        chunks = [self._parts[object_id] for object_id in ids]
        # Flower would take an array for a chunk of another, and that one for a chunk of a third.
        if not all(chunk.startswith(_CHUNK) for chunk in chunks):
            raise BadReply("the reply is refused: an array consists of something else than chunks")
        named: list[int] = json.loads(get_object_body(content, Array))["arraychunk_ids"]
        return sum(len(chunks[index]) for index in named)

    def _check_size(self, data: int) -> None:
        if data > self._allowance.data or self._rest > self._allowance.rest:
            self._refuse(
                f"it is larger than the models of its order: {data} bytes of arrays and {self._rest} of the rest, "
                f"at most {self._allowance.data} and {self._allowance.rest}"
            )

    def _refuse(self, problem: str) -> None:
        # With an id, so that nothing can be announced any more.
        self._id, self._problem, self._parts = "refused", problem, {}
