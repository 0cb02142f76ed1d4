"""A node against a server that is made of lists: what it does when the server is away, says no, or forgets it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from perennial.client import node as node_module
from perennial.client.link.failures import OtherVersion, Refused, Unreachable
from perennial.client.node import Node
from perennial.common.wire.pacing import backoff, pause
from tests.processes import wait_until

Step = Callable[[], object]


def fails(error: Exception) -> Step:
    def step() -> object:
        raise error

    return step


class Server:
    """Plays a list of steps, one a question for orders; then sets ``stop``."""

    def __init__(self, *steps: object) -> None:
        self.steps, self.stop = list(steps), threading.Event()
        self.replies: list[Message] = []
        self.said: list[str] = []
        self.activations = self.closed = 0
        self.push_failures = self.withdrawn = 0
        self.unregistered: list[bool] = []
        self.waits, self.beats_idle, self.beat_every = True, True, 4.0

    def activate(self) -> int:
        self.activations += 1
        return 7

    def heartbeat(self) -> None:
        return None

    def pull(self) -> str | None:
        if not self.steps:
            self.stop.set()
            return None
        step = self.steps.pop(0)
        if callable(step):
            step()
        return "order" if step == "order" else None

    def fetch(self, order: str, node_config: object) -> tuple[Message, Context]:
        if self.withdrawn:
            self.withdrawn -= 1
            raise Refused("withdrawn", gone=False)
        content = RecordDict({"order": ConfigRecord({"round": 1})})
        message = Message(content, 7, "train", ttl=60)
        message.metadata.__dict__["_message_id"] = "order"
        return message, Context(1, 7, {}, RecordDict(), {})

    def push(self, reply: Message, seconds: float) -> None:
        if self.push_failures:
            self.push_failures -= 1
            raise Unreachable("away")
        self.replies.append(reply)

    def close(self, *, unregister: bool) -> None:
        self.closed += 1
        self.unregistered.append(unregister)


def echo(message: Message, _: Context) -> Message:
    return Message(message.content, reply_to=message)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "backoff", lambda *_: 0.001)
    # Let messages be made outside a run.
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def serve(server: Server, app: Callable[[Message, Context], Message] = echo, *, keyed: bool = True) -> Server:
    node = Node(lambda: server, app, {}, stop=server.stop, say=server.said.append, keyed=keyed)
    thread = threading.Thread(target=node.serve, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), server.said
    return server


def test_an_order_is_answered() -> None:
    server = serve(Server("order", "order"))
    assert [reply.metadata.reply_to_message_id for reply in server.replies] == ["order", "order"]


def test_an_app_that_raises_is_reported_and_the_node_lives_on() -> None:
    def broken(message: Message, _: Context) -> Message:
        raise ZeroDivisionError("no data today")

    server = serve(Server("order", "order"), broken)
    assert [reply.error.code for reply in server.replies] == [2, 2]
    assert "ZeroDivisionError: no data today" in (server.replies[0].error.reason or "")


def test_an_outage_is_waited_out_on_the_same_connection() -> None:
    server = serve(Server(fails(Unreachable("cut")), fails(Unreachable("cut")), "order"))
    assert server.activations == 1
    assert len(server.replies) == 1
    assert sum("cannot be reached" in line for line in server.said) == 1


def test_a_reply_is_delivered_after_an_outage_that_began_while_training() -> None:
    server = Server("order")
    server.push_failures = 3
    assert len(serve(server).replies) == 1


def test_a_server_that_forgot_the_node_is_joined_anew() -> None:
    server = serve(Server(fails(Refused("HTTP 401", gone=True)), "order"))
    assert server.activations == 2
    assert len(server.replies) == 1


def test_an_order_that_is_withdrawn_costs_nothing_but_the_order() -> None:
    server = Server("order", "order")
    server.withdrawn = 1
    serve(server)
    assert server.activations == 1
    assert len(server.replies) == 1


def test_a_node_that_is_refused_its_orders_rests_before_it_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[int] = []
    monkeypatch.setattr(node_module, "backoff", lambda failures, _: (rests.append(failures), 0.001)[1])
    server = serve(Server(fails(Refused("HTTP 429", gone=False)), "order"))
    assert rests
    assert server.activations == 2
    assert len(server.replies) == 1
    assert "HTTP 429" in server.said[1]


def test_a_node_whose_signature_is_not_taken_is_told_to_look_at_its_clock() -> None:
    server = Server()
    answers = iter([Refused("HTTP 401", gone=True)])

    def activate() -> int:
        for refusal in answers:
            raise refusal
        return 7

    server.activate = activate  # type: ignore[method-assign]
    serve(server)
    assert "is this device's clock right?" in server.said[0]


def test_a_node_that_is_refused_asks_again_for_ever() -> None:
    server = Server()
    refusals = iter(range(20))

    def activate() -> int:
        server.activations += 1
        if next(refusals, None) is None:
            return 7
        raise Refused("not registered [305]", gone=False)

    server.activate = activate  # type: ignore[method-assign]
    serve(server)
    assert server.activations == 21
    assert "nodes folder" in server.said[0]


def test_a_node_that_may_not_fetch_its_orders_rests_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("order", "order")
    server.withdrawn = 2
    rests: list[float] = []
    monkeypatch.setattr(node_module, "backoff", lambda failures, _: (rests.append(failures), 0.001)[1])
    serve(server)
    assert rests[:2] == [0, 0]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_node_without_a_key_leaves_no_trace(keyed: bool) -> None:
    assert set(serve(Server("order"), keyed=keyed).unregistered) == {not keyed}


def test_a_stock_server_is_asked_quickly_at_first_and_then_seldom() -> None:
    waits, waited = [], 0.0
    while waited < 600:
        waits.append(pause(waited, least=0.05, most=3.0))
        waited += waits[-1]
    assert waits[0] == 0.05
    assert waits == sorted(waits)
    assert waits[-1] == 3.0
    assert len(waits) < 320


def test_backoff_is_short_for_minutes_then_grows_up_to_a_bound_and_never_overflows() -> None:
    assert [backoff(n, 0.5) for n in range(4)] == [1, 2, 2, 2]
    assert sum(backoff(n, 0.5) for n in range(201)) == pytest.approx(400, rel=0.01)
    assert [backoff(n, 0.5) for n in (400, 1500, 1501)] == pytest.approx([4, 15, 15])
    assert backoff(10_000, 0.5) == 15
    assert backoff(0, 0.0) < backoff(0, 0.99)


@pytest.mark.parametrize(("served", "rests"), [(-1.0, []), (60.0, [0])])
def test_a_node_that_was_served_for_long_and_is_forgotten_comes_back_without_a_rest(
    monkeypatch: pytest.MonkeyPatch, served: float, rests: list[int]
) -> None:
    rested: list[int] = []
    monkeypatch.setattr(node_module, "backoff", lambda failures, _: (rested.append(failures), 0.001)[1])
    monkeypatch.setattr(node_module, "_SERVED", served)
    server = serve(Server(fails(Refused("HTTP 401", gone=True)), "order"))
    assert server.activations == 2
    # The last rest is that of a node that is told to stop.
    assert rested[:-1] == rests


def test_a_silent_heartbeat_ends_the_connection_that_the_server_forgot() -> None:
    beaten = threading.Event()
    server = Server(lambda: wait_until(lambda: beaten.is_set() and not beating(), 30, "a beat that is refused"))
    server.beat_every = 0.01

    def heartbeat() -> None:
        beaten.set()
        raise Refused("HTTP 401", gone=True)

    server.heartbeat = heartbeat  # type: ignore[method-assign]
    serve(server)
    assert server.activations == 2


def test_a_node_that_waits_for_orders_beats_only_while_it_has_one() -> None:
    beats, working = threading.Event(), threading.Event()
    server = Server(lambda: time.sleep(0.1), "order")
    server.beats_idle, server.beat_every = False, 0.01

    def heartbeat() -> None:
        assert working.is_set()
        beats.set()

    def app(message: Message, context: Context) -> Message:
        working.set()
        assert beats.wait(10)
        return echo(message, context)

    server.heartbeat = heartbeat  # type: ignore[method-assign]
    serve(server, app)
    assert not server.replies[0].has_error()


def test_a_server_that_is_busy_is_left_alone_for_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(fails(Unreachable("busy", retry=0.3)), "order")
    start = time.monotonic()
    serve(server)
    assert time.monotonic() - start >= 0.3
    assert len(server.replies) == 1
    assert [line for line in server.said if "reached" in line] == []


def test_another_version_of_the_link_is_said_in_one_clear_line() -> None:
    server = Server()
    answers = iter([OtherVersion("this server speaks link 2; install it")])

    def activate() -> int:
        for refusal in answers:
            raise refusal
        return 7

    server.activate = activate  # type: ignore[method-assign]
    serve(server)
    assert server.said[0] == "this server speaks link 2; install it"


def beating() -> bool:
    return any(thread.name == "heartbeat" for thread in threading.enumerate())
