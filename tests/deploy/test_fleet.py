"""Orders and replies on the link, with TLS and keys: there and back, lost, late, repeated, and nothing left of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, generate_private_key
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.app.message import message as flower_message

from perennial.client.kept_predictors import KeptPredictors
from perennial.client.link.failures import OtherVersion, Refused, Unreachable
from perennial.client.link.fleet_connection import FleetConnection
from perennial.common.wire import link
from perennial.server.cohort.patience import Patience
from perennial.server.link import fleet_state, guarded
from perennial.server.link.eager_grid import Stopped
from perennial.server.link.hall import Hall
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.offering import PredictorOffer
from perennial.server.predict.publishing import publish
from perennial.server.predict.versions import numbers
from tests.deploy.fleet import Server, make_tls, order, plus_one, served
from tests.processes import wait_until
from tests.server.predict.published import is_whole, publication


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(tls: Path) -> Iterator[Server]:
    with served(tls) as made:
        yield made


def online(server: Server, count: int) -> list[int]:
    wait_until(lambda: len(server.fleet.online()) >= count, 20, f"{count} devices")
    return list(server.grid.get_node_ids())


def test_a_model_travels_to_a_device_and_back(server: Server) -> None:
    def checked(message: Message, context: Context) -> Message:
        assert dict(message.content["order"]) == {"round": 1}
        assert context.run_config == {"cycles": 2}
        assert context.node_config == {"data": "here"}
        return plus_one(message, context)

    with server.device(checked):
        (node,) = online(server, 1)
        for size in (1, 1000, 300_000):
            sent = order(node, size=size)
            (reply,) = server.grid.send_and_receive([sent], timeout=20)
            assert not reply.has_error()
            assert float(reply.content["mixed"]["layer-4"].numpy()[-1]) == 5.0
            assert reply.metadata.src_node_id == node
            assert reply.metadata.reply_to_message_id == sent.metadata.message_id
    wait_until(server.nothing_left, 5, "nothing to be left")


def test_two_orders_to_one_device_have_two_answers(server: Server) -> None:
    with server.device(plus_one):
        (node,) = online(server, 1)
        sent = [order(node), order(node)]
        replies = list(server.grid.send_and_receive(sent, timeout=20))
    asked = {message.metadata.message_id for message in sent}
    assert {reply.metadata.reply_to_message_id for reply in replies} == asked
    assert len(asked) == 2


def test_a_device_has_the_same_id_whenever_it_comes(server: Server) -> None:
    key = generate_private_key(SECP384R1())
    first, second = server.connection(key), server.connection(key)
    assert first.activate() == second.activate()
    assert len(server.fleet.online()) == 1


def test_an_app_that_raises_is_an_error_of_its_order(server: Server) -> None:
    def broken(message: Message, _: Context) -> Message:
        raise ZeroDivisionError("no data today")

    with server.device(broken):
        (node,) = online(server, 1)
        (reply,) = server.grid.send_and_receive([order(node)], timeout=20)
    assert reply.error.code == 2
    assert "no data today" in (reply.error.reason or "")


def test_a_reply_that_is_no_message_is_an_error_of_its_order(server: Server) -> None:
    connection = server.connection()
    (sent,) = server.grid.push_messages([order(connection.activate())])
    assert connection.pull()
    connection._post(f"{link.REPLY}{sent}", [b"garbage"])
    (reply,) = server.grid.pull_messages([sent])
    assert "cannot be read" in (reply.error.reason or "")
    wait_until(server.nothing_left, 5, "nothing to be left")


@pytest.mark.parametrize("hours", [2, -2])
def test_all_clocks_two_hours_off_in_mid_round_lose_no_reply(
    server: Server, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real, sees = flower_message.now, time.time

    def app(message: Message, context: Context) -> Message:
        monkeypatch.setattr(time, "time", lambda: sees() + 3600 * hours)
        monkeypatch.setattr(flower_message, "now", lambda: real() + timedelta(hours=hours))
        return plus_one(message, context)

    with server.device(app):
        (node,) = online(server, 1)
        for _ in range(2):
            # Without a timeout: a reply that is lost would be waited for as long as the order lives.
            (reply,) = server.grid.send_and_receive([order(node)])
            assert not reply.has_error()
    wait_until(server.nothing_left, 5, "nothing to be left")


def test_a_reply_of_100_mb_is_refused_before_it_is_read_and_is_its_node_s_failure(server: Server) -> None:
    connection = server.connection()
    (sent,) = server.grid.push_messages([order(connection.activate())])
    assert connection.pull()
    with pytest.raises((Refused, Unreachable)):
        connection._post(f"{link.REPLY}{sent}", [bytes(100 * 2**20)])
    (reply,) = wait_for_reply(server, sent)
    assert "the reply is refused: it has 104857600 bytes" in (reply.error.reason or "")
    wait_until(server.nothing_left, 5, "nothing to be left")


def test_replies_come_as_they_arrive_and_the_rest_is_forgotten(server: Server) -> None:
    slow = threading.Event()

    def app(message: Message, context: Context) -> Message:
        if message.content["order"]["round"] == 2:
            slow.wait(20)
        return plus_one(message, context)

    with server.device(app), server.device(app):
        first, second = online(server, 2)
        late = order(second)
        late.content["order"] = ConfigRecord({"round": 2})
        replies = server.grid.stream([order(first), late], timeout=20)
        assert next(replies).metadata.src_node_id == first
        replies.close()
        slow.set()
        wait_until(server.nothing_left, 5, "nothing to be left")


def test_a_round_with_a_quorum_gives_the_others_a_fair_time(server: Server) -> None:
    server.grid._patience = Patience(1.5, 0.5)
    with server.device(plus_one), server.device(plus_one):
        quick = online(server, 2)
        # What devices take is not known before.
        assert len(list(server.grid.send_and_receive([order(node) for node in quick], timeout=60))) == 2
        silent = server.connection()
        nodes = [*quick, silent.activate()]
        replies = list(server.grid.send_and_receive([order(node) for node in nodes], timeout=600))
        # Without patience the round would end when the node is offline, by an error in the place of its reply.
        assert {reply.metadata.src_node_id for reply in replies} == set(quick)
    wait_until(server.nothing_left, 5, "nothing to be left")


def test_silence_ends_with_the_timeout_and_leaves_nothing(server: Server) -> None:
    node = server.connection().activate()
    assert list(server.grid.send_and_receive([order(node)], timeout=0.2)) == []
    wait_until(server.nothing_left, 5, "nothing to be left")


def test_a_stop_abandons_the_round_that_waits(server: Server) -> None:
    node = server.connection().activate()
    threading.Timer(0.2, server.stop.set).start()
    with pytest.raises(Stopped):
        server.grid.send_and_receive([order(node)], timeout=30)
    wait_until(server.nothing_left, 5, "nothing to be left")


def test_an_order_is_lost_soon_after_its_device_is_cut_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_state, "GRACE", 0.5)
    connection = server.connection()
    (sent,) = server.grid.push_messages([order(connection.activate())])
    assert connection.pull()
    connection._http.close()
    (reply,) = wait_for_reply(server, sent)
    assert reply.error.code == 5
    with pytest.raises(Refused) as refused:
        connection.pull()
    assert refused.value.gone


def wait_for_reply(server: Server, sent: str) -> list[Message]:
    replies: list[Message] = []
    wait_until(lambda: replies.extend(server.grid.pull_messages([sent])) or replies, 10, "a reply")
    return replies


def test_a_device_that_restarts_in_mid_order_gets_it_again(server: Server) -> None:
    key = generate_private_key(SECP256R1())
    before = server.connection(key)
    (sent,) = server.grid.push_messages([order(before.activate())])
    assert before.pull()
    before._http.close()
    with server.device(plus_one, key):
        (reply,) = wait_for_reply(server, sent)
    assert not reply.has_error()


def test_a_reply_is_delivered_after_the_connection_broke(server: Server) -> None:
    connection = server.connection()
    (sent,) = server.grid.push_messages([order(connection.activate())])
    announced = connection.pull()
    assert announced
    message, context = connection.fetch(announced, {})
    connection._http.close()
    connection.push(plus_one(message, context), 0.1)
    (reply,) = server.grid.pull_messages([sent])
    assert not reply.has_error()


def test_a_connection_that_rested_too_long_is_made_anew_without_a_word(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "_KNOWN_REST", 0.05)
    connection = server.connection()
    connection.activate()
    wait_until(lambda: not server.listener._server.server_state.connections, 10, "the server to hang up")
    connection.heartbeat()


def test_a_session_is_renewed_before_it_ends(server: Server) -> None:
    connection = server.connection()
    connection.activate()
    assert connection._session
    before = connection._session.id
    object.__setattr__(connection._session, "renew_at", 0.0)
    connection.heartbeat()
    assert connection._session.id != before


def test_a_device_that_leaves_is_offline_at_once(server: Server) -> None:
    connection = server.connection()
    connection.activate()
    connection.close(unregister=False)
    assert server.fleet.online() == []


def test_two_machines_with_one_key_take_turns_and_are_slowed_down(server: Server) -> None:
    key = generate_private_key(SECP256R1())
    machines = [server.connection(key) for _ in range(2)]
    for turn in range(5):
        machines[turn % 2].activate()
    with pytest.raises(Unreachable, match="two machines") as refused:
        machines[1].activate()
    assert refused.value.retry >= 1
    assert len(server.fleet.online()) == 1


def test_replies_that_find_no_room_wait_and_are_all_taken(server: Server) -> None:
    server.app.hall = Hall(100_000)
    server.fleet.serve(server.listener_loop(), server.app.wake, server.app.hall.leave)
    with server.device(plus_one), server.device(plus_one), server.device(plus_one):
        nodes = online(server, 3)
        replies = list(server.grid.send_and_receive([order(node, size=20_000) for node in nodes], timeout=30))
    assert [reply.has_error() for reply in replies] == [False] * 3
    wait_until(server.nothing_left, 5, "room")


# --- Who is who -------------------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused(server: Server) -> None:
    with pytest.raises(Refused, match="not admitted here") as refused:
        server.connection(register=False).activate()
    assert not refused.value.gone


def test_a_revoked_device_is_unknown_at_its_next_question(server: Server) -> None:
    connection = server.connection()
    server.fleet.revoke(connection.activate())
    for question in (connection.heartbeat, connection.pull):
        with pytest.raises(Refused) as refused:
            question()
        assert refused.value.gone
    with pytest.raises(Refused, match="not admitted"):
        connection.activate()


def test_a_server_with_another_certificate_is_not_spoken_to(server: Server, tmp_path: Path) -> None:
    make_tls(tmp_path)
    connection = FleetConnection(server.address, ca=tmp_path / "ca.crt", key=None)
    with pytest.raises(Unreachable, match="certificate is not taken"):
        connection.activate()
    connection.close(unregister=False)


def test_a_server_that_passes_on_another_one_s_challenge_gets_no_session(server: Server) -> None:
    """The signature covers the certificate that the device sees."""
    connection = server.connection()
    server.fleet.keys._certificate = b"the certificate of the server whose challenge it was"
    with pytest.raises(Refused, match="this server"):
        connection.activate()


def test_a_device_of_another_version_is_told_so(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perennial.client.link.fleet_connection.link.VERSION_HEADER", "other")
    assert server.connection().activate()
    monkeypatch.undo()
    connection = server.connection()
    with monkeypatch.context() as patch:
        patch.setattr("perennial.server.link.fleet_app.link.VERSION", 2)
        # Both sides share a module here: the device says what it was made with.
        patch.setattr(connection, "_greet", lambda: greet_as(connection, "1"))
        with pytest.raises(OtherVersion, match="this server speaks link 2"):
            connection.activate()


def greet_as(connection: FleetConnection, version: str) -> dict[str, object]:
    answer = connection._http.request("GET", link.GREET, {link.VERSION_HEADER: version}, seconds=5)
    assert answer.status == 426
    raise OtherVersion(answer.text())


def test_a_device_tells_a_server_of_another_version_by_its_greeting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = server.connection()
    monkeypatch.setattr("perennial.client.link.fleet_connection._json", lambda _: {"link": 7, "challenge": "x"})
    with pytest.raises(OtherVersion, match="speaks link 7, this device 1"):
        connection.activate()


def test_an_answer_of_somebody_else_is_no_crash(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = server.connection()
    answers = iter([{"link": 1, "challenge": "x"}, {"session": "x"}])
    monkeypatch.setattr("perennial.client.link.fleet_connection._json", lambda _: next(answers))
    monkeypatch.setattr("perennial.client.link.fleet_connection._checked", lambda answer: answer)
    with pytest.raises(Unreachable, match="no session"):
        connection.activate()


def test_an_order_that_cannot_be_read_is_dropped(server: Server) -> None:
    from perennial.client.link.fleet_connection import Handed

    connection = server.connection()
    connection.activate()
    for body in (b"", b"garbage", b"PRF1\0\0\0\2{}"):
        with pytest.raises(Refused, match="cannot be read") as refused:
            connection.fetch(Handed(body), {})
        assert not refused.value.gone


def test_a_reply_without_content_is_a_reply(server: Server) -> None:
    with server.device(lambda message, _: Message(RecordDict(), reply_to=message)):
        (node,) = online(server, 1)
        (reply,) = server.grid.send_and_receive([order(node)], timeout=20)
    assert len(reply.content) == 0


def test_a_device_keeps_the_newest_predictors_also_without_an_order(
    tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PATIENCE", 0.1)
    run, device = tmp_path / "run", tmp_path / "device"
    publish(run, publication(1))
    kept = KeptPredictors(device, print, seconds=0.0)
    with served(tls, PredictorOffer(run)) as server, server.device(plus_one, kept=kept):
        wait_until(lambda: numbers(device) == [1], 30, "the first version")
        publish(run, publication(2))
        wait_until(lambda: numbers(device)[-1:] == [2], 30, "the second version")
        # And orders go on.
        (node,) = online(server, 1)
        (reply,) = server.grid.send_and_receive([order(node)], timeout=20)
        assert not reply.has_error()
    assert is_whole(load_predictor(device, block="night"))
