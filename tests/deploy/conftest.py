"""A server's side and devices in one process: real requests over loopback, no namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity

from perennial.client.link.connection import Announced, Connection
from perennial.server.link.link import Link, LinkRun
from perennial.server.link.listener import Listener
from tests.processes import wait_until


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def run(link: Link) -> Iterator[LinkRun]:
    started = link.start_run({"strategy": "mc-psgd", "cycles": 2})
    yield started
    started.finish(completed=False)


@pytest.fixture
def listener(link: Link) -> Iterator[Listener]:
    served = Listener(link.gated(keys_required=True), "127.0.0.1", 0)
    served.start()
    yield served
    served.stop()


def key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP384R1())


def order(node: int, *, size: int = 1000) -> Message:
    # Server and node are one process here; Flower notes the sender for the whole process.
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    arrays = ArrayRecord({f"layer-{i}": Array(np.full(size, i, np.float32)) for i in range(5)})
    return Message(RecordDict({"mixed": arrays, "order": ConfigRecord({"round": 1})}), node, "train", ttl=60)


def nothing_left(link: Link) -> bool:
    """Whether the server holds no order, no reply, no part and no upload."""
    state = link.state
    return not any(
        (
            state.message_ins_store,
            state.message_res_store,
            state._parts.store,
            state._replies,
            state._uploads,
            state._object_push_sessions,
        )
    )


Connect = Callable[..., Connection]


@pytest.fixture
def connect(listener: Listener) -> Iterator[Connect]:
    """Connections that are closed in the end."""
    made: list[Connection] = []

    def connected(private: EllipticCurvePrivateKey | None, port: int = 0) -> Connection:
        made.append(Connection(f"127.0.0.1:{port or listener.port}", ca=None, key=private))
        return made[-1]

    yield connected
    for connection in made:
        connection.close(unregister=False)


class Device:
    """A node that adds one to every array."""

    def __init__(self, link: Link, connect: Connect) -> None:
        private = key()
        self.node = link.register(private.public_key())
        self.connection = connect(private)
        assert self.connection.activate() == self.node

    def fetched(self) -> tuple[Message, Context]:
        """Return the order that the server has for this node, and its context."""
        announced: list[Announced] = []
        wait_until(lambda: announced.extend(filter(None, [self.connection.pull()])) or announced, 60, "an order")
        return self.connection.fetch(announced[0], {"data": "here"})

    def answer(self) -> None:
        message, context = self.fetched()
        assert context.run_config["cycles"] == 2
        assert context.node_config == {"data": "here"}
        arrays = {name: Array(array.numpy() + 1) for name, array in message.content["mixed"].items()}
        self.connection.push(Message(RecordDict({"mixed": ArrayRecord(arrays)}), reply_to=message), 0.1)
