"""Replies of nodes that lie about them: refused one by one, at no cost to the server or to other nodes."""

from __future__ import annotations

import hashlib
import json
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto, metadata_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import in_memory_object_store

from perennial.server.link.arriving import Allowance, ArrivingReply, BadReply, names
from perennial.server.link.link import Link, LinkRun
from tests.deploy.conftest import Connect, Device, nothing_left, order

Tree = ObjectTree


def name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def part(kind: str, children: list[bytes], body: bytes) -> bytes:
    return f"{kind} {','.join(map(name, children))} {len(body)}".encode() + b"\0" + body


class Liar(Device):
    """A device that holds an order, and announces and sends what it likes."""

    def __init__(self, link: Link, run: LinkRun, connect: Connect) -> None:
        super().__init__(link, connect)
        (self.order,) = run.grid.push_messages([order(self.node)])
        self.message, _ = self.fetched()
        self.reply = Message(RecordDict(), reply_to=self.message)

    def announce(self, tree: ObjectTree) -> PushMessagesResponse:
        self.reply.metadata.__dict__["_message_id"] = tree.object_id
        return self.connection._client.PushMessages(
            PushMessagesRequest(
                node=self.connection._node,
                messages_list=[message_to_proto(remove_content_from_message(self.reply))],
                message_object_trees=[tree],
            )
        )

    def send(self, *parts: bytes) -> None:
        """Announce parts of which each is the only child of the next, and send them."""
        tree = Tree(object_id=name(parts[0]))
        for content in parts[1:]:
            tree = Tree(object_id=name(content), children=[tree])
        session = self.announce(tree).session_id
        pairs = [(name(content), content) for content in parts]
        self.connection._push_parts(self.message.metadata.run_id, session, pairs)

    def send_message(self, *parts: bytes, reply_to: str = "") -> None:
        """Send parts that end with an array, in a record, in a message."""
        record = part("ArrayRecord", [parts[-1]], json.dumps({"w": name(parts[-1])}).encode())
        content = part("RecordDict", [record], json.dumps({"mixed": name(record)}).encode())
        metadata = metadata_to_proto(self.reply.metadata)
        metadata.message_id, metadata.reply_to_message_id = "", reply_to or self.order
        root = part("Message", [content], MessageProto(metadata=metadata).SerializeToString(deterministic=True))
        self.send(*parts, record, content, root)


def array(chunk: bytes, times: int) -> bytes:
    described = {"dtype": "float32", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    return part("Array", [chunk], json.dumps(described).encode())


def refusal(run: LinkRun, sent: str) -> str:
    (reply,) = run.grid.pull_messages([sent])
    assert reply.metadata.reply_to_message_id == sent
    return reply.error.reason or ""


@pytest.mark.parametrize("children", [1, 2], ids=["deep", "doubled"])
def test_a_tree_that_is_deep_or_doubles_itself_costs_nothing(
    link: Link, run: LinkRun, connect: Connect, children: int
) -> None:
    device = Liar(link, run, connect)
    ids = [name(bytes([number])) for number in range(121)]
    rows = [
        Tree(object_id=ids[number], children=[Tree(object_id=ids[number - 1])] * children) for number in range(1, 121)
    ]
    device.announce(Tree(object_id=name(b"root"), children=[Tree(object_id=ids[0]), *rows]))
    assert list(run.grid.pull_messages([device.order])) == []
    run.grid.forget([device.order])
    assert nothing_left(link)


def test_a_node_cannot_give_children_to_what_the_server_sends(link: Link, run: LinkRun, connect: Connect) -> None:
    device, other = Liar(link, run, connect), Device(link, connect)
    expected = order(other.node)
    spoilt = [Tree(object_id=child.object_id, children=[Tree(object_id=name(b"never"))])
              for child in get_object_tree(expected).children[0].children]  # fmt: skip
    device.announce(Tree(object_id=name(b"root"), children=spoilt))
    (sent,) = run.grid.push_messages([expected])
    other.answer()
    (reply,) = run.grid.pull_messages([sent])
    assert not reply.has_error()
    run.grid.forget([device.order])
    assert nothing_left(link)


def test_an_array_that_repeats_its_chunk_is_refused_before_it_is_made(
    link: Link, run: LinkRun, connect: Connect
) -> None:
    device = Liar(link, run, connect)
    chunk = part("ArrayChunk", [], bytes(2**20))
    device.send_message(chunk, array(chunk, 400))
    assert "419438" in refusal(run, device.order)
    assert nothing_left(link)


def test_an_array_is_no_chunk_of_an_array(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Liar(link, run, connect)
    chunk = part("ArrayChunk", [], bytes(1000))
    inner = array(chunk, 500)
    device.send_message(chunk, inner, array(inner, 500))
    assert "something else than chunks" in refusal(run, device.order)
    assert nothing_left(link)


@pytest.mark.parametrize("kind", ["ArrayChunk", "ConfigRecord"])
def test_a_part_that_is_larger_than_the_order_allows_is_refused(
    link: Link, run: LinkRun, connect: Connect, kind: str
) -> None:
    device = Liar(link, run, connect)
    device.send(part(kind, [], bytes(3 * 2**20)))
    assert "larger than the models of its order" in refusal(run, device.order)
    assert nothing_left(link)


def test_more_parts_than_the_order_allows_are_refused(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Liar(link, run, connect)
    many = [Tree(object_id=name(str(number).encode())) for number in range(5000)]
    assert not device.announce(Tree(object_id=name(b"root"), children=many)).objects_to_push
    assert "larger than the models of its order" in refusal(run, device.order)
    assert nothing_left(link)


@pytest.mark.parametrize("object_id", ["", "x" * 64, "a" * 1000], ids=["empty", "no-hash", "long"])
def test_a_part_whose_name_is_no_hash_is_refused(link: Link, run: LinkRun, connect: Connect, object_id: str) -> None:
    device = Liar(link, run, connect)
    device.announce(Tree(object_id=name(b"root"), children=[Tree(object_id=object_id)]))
    assert "not named as Flower names them" in refusal(run, device.order)
    assert nothing_left(link)


def test_a_reply_that_is_announced_anew_with_other_parts_is_refused(link: Link, run: LinkRun, connect: Connect) -> None:
    device = Liar(link, run, connect)
    root = name(b"root")
    first = device.announce(Tree(object_id=root, children=[Tree(object_id=name(b"one"))]))
    again = device.announce(Tree(object_id=root, children=[Tree(object_id=name(b"one"))]))
    assert set(first.objects_to_push) == set(again.objects_to_push) == {root, name(b"one")}
    device.announce(Tree(object_id=root, children=[Tree(object_id=name(b"two"))]))
    assert "announced twice" in refusal(run, device.order)
    assert nothing_left(link)


def test_a_reply_to_another_order_than_it_was_announced_for_is_refused(
    link: Link, run: LinkRun, connect: Connect
) -> None:
    device = Liar(link, run, connect)
    chunk = part("ArrayChunk", [], bytes(1000))
    device.send_message(chunk, array(chunk, 1), reply_to="another")
    assert "to another order" in refusal(run, device.order)
    assert nothing_left(link)


def test_an_order_of_zeros_leaves_room_for_a_model_of_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal chunks one is sent, and equal arrays of two models are one part."""
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 2**14)
    size = 2**20
    zeros = {f"layer-{i}": Array(np.zeros(size, np.float32)) for i in range(2)}
    asked = Message(RecordDict({"mixed": ArrayRecord(zeros), "separate": ArrayRecord(zeros)}), 7, "train")
    asked.metadata.__dict__["_message_id"] = asked.object_id
    rng = np.random.default_rng(0)
    trained = {
        chain: ArrayRecord({layer: Array(rng.random(size, np.float32)) for layer in zeros})
        for chain in ("mixed", "separate")
    }
    answered = Message(RecordDict(trained), reply_to=asked)
    reply, objects = ArrivingReply(Allowance.of(asked)), get_all_nested_objects(answered)
    for object_id in reply.announce(answered.object_id, names(get_object_tree(answered))):
        assert reply.put(object_id, objects[object_id].deflate())
    assert reply.ready
    assert np.array_equal(reply.read().content["mixed"]["layer-1"].numpy(), trained["mixed"]["layer-1"].numpy())


def test_a_refused_reply_stays_refused() -> None:
    reply = ArrivingReply(Allowance(0, 100))
    reply.announce(name(b"a"), {name(b"a")})
    assert reply.announce(name(b"b"), {name(b"b")}) == []
    assert not reply.put(name(b"b"), b"b")
    assert reply.ready
    with pytest.raises(BadReply):
        reply.read()


def test_an_order_is_registered_in_one_piece(
    link: Link, run: LinkRun, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first of two orders with the same model is confirmed, the second is being stored."""
    first, second = Device(link, connect), Device(link, connect)
    (sent,) = run.grid.push_messages([order(first.node)])
    deleting = threading.Thread(target=link.state.object_store.delete, args=(sent,))
    iterate = in_memory_object_store.iterate_object_tree

    def interrupted(tree: ObjectTree) -> object:
        *parts, root = iterate(tree)
        yield from parts[:-1]
        deleting.start()
        deleting.join(0.2)
        yield from (parts[-1], root)

    monkeypatch.setattr(in_memory_object_store, "iterate_object_tree", interrupted)
    (also,) = run.grid.push_messages([order(second.node)])
    deleting.join()
    second.answer()
    (reply,) = run.grid.pull_messages([also])
    assert not reply.has_error()
