"""The routes of the link: orders and replies, and everything that is wrong with a request."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

import pytest
from flwr.app import RecordDict

from perennial.common.wire import link
from perennial.common.wire.frame import unpack
from perennial.server.link import asgi, fleet_app, hall
from perennial.server.link.asgi import Peer
from perennial.server.link.fleet import Fleet
from perennial.server.link.fleet_app import FleetApp
from perennial.server.link.fleet_state import GRACE, SILENCE
from perennial.server.link.hall import Hall
from tests.server.link.wire import CONFIG, Answered, Clock, Device, ask, order, serving

Body = Callable[..., Awaitable[None]]


def served(test: Body) -> Callable[..., None]:
    """Run a test in a loop of its own, with an application, its fleet and a clock."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        async def play() -> None:
            async with serving() as (app, fleet, clock):
                await asyncio.wait_for(test(app, fleet, clock, *arguments, **named), 20)

        asyncio.run(play())

    # pytest asks for what the signature has.
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


async def begun(app: FleetApp) -> Device:
    device = Device(app)
    assert (await device.begin()).status == 200
    return device


async def until_waiting(app: FleetApp, device: Device) -> asyncio.Task[Answered]:
    """Return a wait that the server keeps open."""
    task = asyncio.create_task(device.wait())
    while device.node not in app._waiting:
        await asyncio.sleep(0)
    return task


@served
async def test_an_order_comes_with_its_models_and_is_answered(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    fleet.push([order(device.node)])
    answered = await waiting
    fields, content = unpack(answered.body, 2**20)
    assert fields == {"id": "order-1"}
    assert isinstance(content, RecordDict)
    assert content["mixed"]["w"].numpy().shape == (1000,)
    assert (await device.reply("order-1", b"one", b"two")).status == 204
    (done,) = fleet.take({"order-1"})
    assert done.body == b"onetwo"


@served
async def test_a_session_tells_the_run_s_configuration(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    said = (await Device(app).begin()).json()
    assert (said["config"], said["run"]) == (CONFIG, fleet.run.id)


@served
async def test_a_session_may_be_begun_again_and_again(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = Device(app)
    assert [(await device.begin()).status for _ in range(3)] == [200] * 3
    assert fleet.online() == [device.node]


@served
async def test_another_version_gets_one_clear_line(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    answered = await ask(app, "GET", link.GREET, {link.VERSION_HEADER: "2"})
    assert answered.status == 426
    assert answered.body.decode() == "this server speaks link 1; install a Perennial on the device that does"


@served
async def test_a_wait_ends_with_nothing_after_its_patience(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    link_patience, link.PATIENCE = link.PATIENCE, 0.01
    try:
        assert (await device.wait()).status == 204
    finally:
        link.PATIENCE = link_patience
    assert not app._waiting


@served
async def test_a_later_wait_takes_the_place_of_an_earlier_one(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    first = await until_waiting(app, device)
    second = asyncio.create_task(device.wait())
    assert (await first).status == 409
    fleet.push([order(device.node)])
    assert (await second).status == 200


@served
async def test_a_new_session_ends_a_wait_of_the_old_one(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    await device.begin()
    assert (await waiting).status == 401


@served
async def test_a_node_that_hung_up_is_given_nothing(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    device.peer.close()
    await waiting
    fleet.push([order(device.node)])
    # It is back in a moment, on another connection.
    device.peer = Peer()
    assert (await device.wait()).status == 200


@served
async def test_a_node_whose_connection_broke_is_offline_after_a_moment(
    app: FleetApp, fleet: Fleet, clock: Clock
) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    fleet.push([order(device.node)])
    await waiting
    device.peer.close()
    clock.now += GRACE - 0.1
    assert fleet.tick() == []
    clock.now += 0.2
    assert fleet.tick() == [device.node]
    (lost,) = fleet.take({"order-1"})
    assert "offline" in lost.lost
    assert (await device.wait()).status == 401


@served
async def test_a_wait_is_a_heartbeat_and_so_is_a_beat(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    clock.now += 10 * SILENCE
    assert fleet.tick() == []
    fleet.push([order(device.node)])
    await waiting
    for _ in range(3):
        clock.now += SILENCE - 1
        assert fleet.tick() == []
        assert (await device.post(link.BEAT)).status == 204
    clock.now += SILENCE
    assert fleet.tick() == [device.node]


@served
async def test_a_node_that_leaves_is_gone_at_once(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    assert (await device.post(link.LEAVE)).status == 204
    assert fleet.online() == []
    assert (await device.post(link.BEAT)).status == 401


@served
async def test_a_node_that_is_revoked_is_out_at_once(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    fleet.revoke(device.node)
    assert (await waiting).status == 401
    assert (await device.begin()).status == 403


@served
async def test_a_run_that_is_over_lets_nobody_wait(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    waiting = await until_waiting(app, device)
    fleet.finish()
    for answered in (await waiting, await device.wait()):
        assert answered.status == 503
        assert int(answered.headers["retry-after"]) >= 1


# --- What is wrong with a request -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", link.GREET, 404),
        ("GET", link.WAIT, 404),
        ("DELETE", link.SESSION, 404),
        ("POST", "/v1/link/other", 404),
        ("POST", "/v1/fleet/pull-messages", 404),
        ("POST", link.WAIT, 401),
        ("POST", link.BEAT, 401),
        ("POST", link.LEAVE, 401),
        ("POST", link.SESSION, 401),
        ("POST", f"{link.REPLY}x", 401),
    ],
)
@pytest.mark.parametrize("header", ["", "Perennial", "Perennial a b c d", "Basic x", "Perennial-Key", "\x80\xff"])
def test_a_stranger_is_refused_and_shown_out(method: str, path: str, status: int, header: str) -> None:
    @served
    async def play(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
        answered = await ask(app, method, path, {"authorization": header})
        assert (answered.status, answered.headers["connection"], answered.asked) == (status, "close", False)

    play()


@pytest.mark.parametrize("path", [link.SESSION, link.WAIT, link.BEAT, link.LEAVE, f"{link.REPLY}x"])
@pytest.mark.parametrize("length", ["1", "60000000", "9" * 14, "9" * 400, "-1", "x"])
def test_no_body_of_a_stranger_is_read(path: str, length: str) -> None:
    @served
    async def play(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
        answered = await ask(app, "POST", path, {"content-length": length}, body=[b"x" * 1000])
        assert 400 <= answered.status < 500
        assert not answered.asked

    play()


@served
async def test_a_body_without_a_length_is_refused(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    path = f"{link.REPLY}x"
    headers = {**device.token(path), "transfer-encoding": "chunked"}
    answered = await ask(app, "POST", path, headers, body=[b"x"])
    assert (answered.status, answered.asked) == (411, False)


@served
async def test_a_request_that_was_sent_before_is_refused(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    headers = device.token(link.LEAVE)
    await device.post(link.BEAT)
    assert (await ask(app, "POST", link.LEAVE, headers)).status == 401
    assert fleet.online() == [device.node]


@served
async def test_a_token_of_another_route_is_refused(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    assert (await ask(app, "POST", link.LEAVE, device.token(link.BEAT))).status == 401
    assert fleet.online() == [device.node]


@served
async def test_a_node_neither_reads_nor_answers_an_order_of_another(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    victim, thief = await begun(app), await begun(app)
    waiting = await until_waiting(app, thief)
    fleet.push([order(victim.node)])
    assert (await victim.wait()).status == 200
    answered = await thief.reply("order-1", b"stolen")
    assert (answered.status, answered.asked) == (410, False)
    assert not waiting.done()
    assert fleet.take({"order-1"}) == []
    waiting.cancel()


async def ordered(app: FleetApp, fleet: Fleet, **keys: int) -> Device:
    device = await begun(app)
    fleet.push([order(device.node, **keys)])  # type: ignore[arg-type]
    assert (await device.wait()).status == 200
    return device


@served
async def test_a_reply_that_is_too_large_is_not_read(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await ordered(app, fleet, room=10)
    answered = await device.reply("order-1", b"x" * 11)
    assert (answered.status, answered.asked) == (413, False)
    (lost,) = fleet.take({"order-1"})
    assert "11 bytes" in lost.lost


@pytest.mark.parametrize("sent", [[b"other!"], [b"short"], [b"real", b"!!", b"more"], [b"re", b"hang up"]])
def test_a_body_that_is_not_what_was_said_is_refused(sent: list[bytes]) -> None:
    @served
    async def play(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
        device = await ordered(app, fleet)
        path = f"{link.REPLY}order-1"
        headers = {**device.token(path, b"real!!"), "content-length": "6"}
        answered = await ask(app, "POST", path, headers, body=sent)
        assert answered.status == 400
        assert fleet.take({"order-1"}) == []
        assert app.hall.used == 0
        # The order is still there for the real one.
        assert (await device.reply("order-1", b"real!!")).status == 204

    play()


@served
async def test_a_body_that_never_comes_is_given_up(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await ordered(app, fleet)
    path = f"{link.REPLY}order-1"
    headers = {**device.token(path, b"real!!"), "content-length": "6"}
    silent, fleet_app._SILENT = fleet_app._SILENT, 0.05
    try:
        answered = await ask(app, "POST", path, headers, body=[])
    finally:
        fleet_app._SILENT = silent
    assert answered.status == 408
    assert app.hall.used == 0


@served
async def test_a_reply_is_taken_once(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await ordered(app, fleet)
    assert (await device.reply("order-1", b"first")).status == 204
    again = await device.reply("order-1", b"again")
    assert (again.status, again.asked) == (204, False)
    assert [one.body for one in fleet.take({"order-1"})] == [b"first"]


@served
async def test_a_late_reply_is_dropped(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await ordered(app, fleet)
    fleet.forget(["order-1"])
    assert (await device.reply("order-1", b"late")).status == 410
    assert app.hall.used == 0


@served
async def test_an_order_is_handed_out_again_to_a_node_that_asks_for_it_again(
    app: FleetApp, fleet: Fleet, clock: Clock
) -> None:
    device = await ordered(app, fleet)
    assert (await device.wait()).body
    assert (await device.reply("order-1", b"x")).status == 204


@served
async def test_a_reader_that_does_not_read_is_cut_off(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await begun(app)
    fleet.push([order(device.node, size=100_000)])
    cut: list[bool] = []
    headers = [(b"authorization", device.token(link.WAIT)["authorization"].encode())]
    scope = {"type": "http", "method": "POST", "path": link.WAIT, "query_string": b"", "headers": headers}

    async def stuck(_: object) -> None:
        await asyncio.Event().wait()

    seconds, asgi._SECONDS_TO_WRITE = asgi._SECONDS_TO_WRITE, 0.05
    try:
        await app({**scope, asgi.PEER: Peer(lambda: cut.append(True))}, stuck, stuck)  # type: ignore[arg-type]
    finally:
        asgi._SECONDS_TO_WRITE = seconds
    assert cut == [True]


# --- Many at once -----------------------------------------------------------------------------------------------------


@served
async def test_a_thousand_replies_at_once_take_no_more_memory_than_a_few(
    app: FleetApp, fleet: Fleet, clock: Clock
) -> None:
    app.hall = Hall(3000)
    fleet.serve(asyncio.get_running_loop(), app.wake, app.hall.leave)
    devices = [await begun(app) for _ in range(100)]
    fleet.push([order(device.node, f"o{n}") for n, device in enumerate(devices)])
    for device in devices:
        await device.wait()
    names = {f"o{n}" for n in range(100)}
    sent = [asyncio.create_task(device.reply(f"o{n}", b"x" * 1000)) for n, device in enumerate(devices)]
    got = 0
    while got < 100:
        await asyncio.sleep(0)
        assert app.hall.used <= 3000
        got += len(fleet.take(names, 1))
    assert {(await one).status for one in sent} == {204}
    await asyncio.sleep(0)
    assert app.hall.used == 0


@served
async def test_a_reply_of_somebody_who_hung_up_is_not_waited_for(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    app.hall = Hall(1)
    fleet.serve(asyncio.get_running_loop(), app.wake, app.hall.leave)
    first, gone, last = [await begun(app) for _ in range(3)]
    fleet.push([order(device.node, f"o{n}") for n, device in enumerate((first, gone, last))])
    for device in (first, gone, last):
        await device.wait()
    await first.reply("o0", b"x" * 10)
    waits = [asyncio.create_task(gone.reply("o1", b"x")), asyncio.create_task(last.reply("o2", b"x"))]
    while len(app.hall._queue) < 2:
        await asyncio.sleep(0)
    gone.peer.close()
    fleet.take({"o0"})
    assert (await waits[1]).status == 204
    assert (await waits[0]).status == 503
    assert not (await waits[0]).asked


@served
async def test_too_many_replies_are_told_to_come_back_later(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    device = await ordered(app, fleet)
    most, fleet_app._MOST_UNDER_WAY = fleet_app._MOST_UNDER_WAY, 0
    try:
        answered = await device.reply("order-1", b"x")
    finally:
        fleet_app._MOST_UNDER_WAY = most
    assert (answered.status, answered.asked) == (503, False)
    assert 1 <= int(answered.headers["retry-after"]) <= 10
    assert (await device.reply("order-1", b"x")).status == 204


@served
async def test_a_reply_that_waited_too_long_is_told_to_come_back(app: FleetApp, fleet: Fleet, clock: Clock) -> None:
    full = Hall(1)
    await full.enter(10)
    patience, hall._PATIENCE = hall._PATIENCE, 0.01
    try:
        with pytest.raises(hall.Refusal) as refused:
            await full.enter(10)
    finally:
        hall._PATIENCE = patience
    assert refused.value.status == 503
    full.leave(10)
    await full.enter(10)
    assert full.used == 10
