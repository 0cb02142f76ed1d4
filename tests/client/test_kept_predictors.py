"""A device's folder of predictors: the newest version or the one before, whatever comes and whatever goes wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perennial.client import kept_predictors
from perennial.client.kept_predictors import KeptPredictors
from perennial.common.wire.offer import OFFERED
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.offering import PredictorOffer
from perennial.server.predict.publishing import publish
from perennial.server.predict.versions import check, numbers, path_of
from tests.server.link.wire import Device, ask, serving
from tests.server.predict.published import arrays, is_whole, publication


class Server:
    """A run's folder as a device reaches it. asked: the paths; spoil: changes what is sent."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked, self.sent = folder, [], 0
        self._offer = PredictorOffer(folder)
        self.spoil: Callable[[str, bytes | None], bytes | None] = lambda path, content: content

    def publish(self, *numbers: int, **changes: Any) -> None:
        for number in numbers:
            publish(self.folder, publication(number, **changes))
        self._offer._looked = -1e9

    def fetch(self, path: str) -> bytes | None:
        self.asked.append(path.removeprefix(OFFERED))
        rest, is_file, name = path.removeprefix(OFFERED).partition("/")
        content = self._offer.file(int(rest), name) if is_file else self._offer.newest(rest)
        content = self.spoil(path, content)
        self.sent += len(content or b"")
        return content


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "run")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def kept(tmp_path: Path, said: list[str]) -> KeptPredictors:
    return KeptPredictors(tmp_path / "device", said.append, seconds=0.0)


def test_the_newest_version_comes_whole_and_nothing_comes_twice(
    tmp_path: Path, server: Server, kept: KeptPredictors, said: list[str]
) -> None:
    kept.renew(server.fetch)
    assert (server.sent, said) == (0, [])
    server.publish(1, 2)
    kept.renew(server.fetch)
    found = load_predictor(tmp_path / "device", block="night")
    assert (found.version, is_whole(found)) == (2, True)
    sent = server.sent
    kept.renew(server.fetch)
    assert (server.sent, said) == (sent, ["predictors: version 2 is here"])
    assert numbers(tmp_path / "device") == [2]


def test_only_the_blocks_that_have_changed_are_sent(server: Server, kept: KeptPredictors) -> None:
    server.publish(1)
    kept.renew(server.fetch)
    server.asked.clear()
    server.publish(2, predictors=(arrays(1, 0), arrays(2, 1)))
    kept.renew(server.fetch)
    assert server.asked[1:] == ["2/block-1.safetensors"]


def test_a_device_that_was_away_gets_the_newest_and_a_new_process_asks_for_nothing_twice(
    tmp_path: Path, server: Server, kept: KeptPredictors
) -> None:
    server.publish(1)
    kept.renew(server.fetch)
    server.publish(*range(2, 12))
    again = KeptPredictors(tmp_path / "device", print, seconds=0.0)
    again.renew(server.fetch)
    assert load_predictor(tmp_path / "device", block="day").version == 11
    assert numbers(tmp_path / "device") == [1, 11]
    before = server.sent
    KeptPredictors(tmp_path / "device", print, seconds=0.0).renew(server.fetch)
    assert server.sent == before


def test_a_run_that_begins_anew_takes_the_place_of_the_old_one(tmp_path: Path, kept: KeptPredictors) -> None:
    old, new = Server(tmp_path / "old"), Server(tmp_path / "new")
    old.publish(1, 2, 3)
    kept.renew(old.fetch)
    new.publish(1, run="another")
    kept.renew(new.fetch)
    assert load_predictor(tmp_path / "device", block="day").manifest["run"] == "another"
    assert numbers(tmp_path / "device") == [1]


def test_what_is_damaged_on_the_device_is_fetched_again(tmp_path: Path, server: Server, kept: KeptPredictors) -> None:
    server.publish(1)
    kept.renew(server.fetch)
    path = path_of(tmp_path / "device", 1) / "block-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    kept.renew(server.fetch)
    assert check(path_of(tmp_path / "device", 1))["version"] == 1


def spoiled(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def renamed(content: bytes) -> bytes:
    manifest = json.loads(content)
    del manifest["checksum"]
    manifest["sha256"] = {"../../evil": "0"}
    from perennial.common.wire.offer import checksum

    return json.dumps({**manifest, "checksum": checksum(manifest)}).encode()


@pytest.mark.parametrize(
    ("where", "spoil", "says"),
    [("safetensors", spoiled, "block-0.safetensors of version 2 is not what its manifest says"),
     ("safetensors", lambda content: content[:50], "is not what its manifest says"),
     ("", lambda content: content[:50], "what came is no manifest"),
     ("", lambda content: b"[]", "what came is no manifest"),
     ("", lambda content: content.replace(b"day", b"dax"), "its checksum differs"),
     ("", renamed, "what came names files that are no predictors")],
)  # fmt: skip
def test_what_comes_damaged_is_not_taken_and_the_old_version_stays(
    tmp_path: Path, server: Server, kept: KeptPredictors, said: list[str], where: str, spoil: Any, says: str
) -> None:
    server.publish(1)
    kept.renew(server.fetch)
    server.publish(2)
    server.spoil = lambda path, content: spoil(content) if content and path.endswith(where) else content
    for _ in range(2):
        kept.renew(server.fetch)
        found = load_predictor(tmp_path / "device", block="day")
        assert (found.version, is_whole(found)) == (1, True)
    # Once is enough.
    assert [says in line for line in said] == [False, True]
    server.spoil = lambda path, content: content
    kept.renew(server.fetch)
    assert load_predictor(tmp_path / "device", block="day").version == 2


def test_a_disk_that_is_full_leaves_the_old_version_and_nothing_else(
    tmp_path: Path, server: Server, kept: KeptPredictors, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish(1)
    kept.renew(server.fetch)
    server.publish(2)
    before = sorted(tmp_path.glob("device/**/*"))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        kept.renew(server.fetch)
    assert "No space left on device; the version that is here goes on being used" in said[-1]
    assert sorted(tmp_path.glob("device/**/*")) == before
    kept.renew(server.fetch)
    assert load_predictor(tmp_path / "device", block="day").version == 2


def test_a_version_that_is_overtaken_while_it_is_fetched_makes_room_for_the_next(
    tmp_path: Path, server: Server, kept: KeptPredictors
) -> None:
    server.publish(1)
    overtaking = iter([2])

    def overtake(path: str, content: bytes | None) -> bytes | None:
        if path.endswith("block-1.safetensors") and (number := next(overtaking, None)):
            server.publish(number)
            server._offer.newest("")
            return None
        return content

    server.spoil = overtake
    kept.renew(server.fetch)
    assert load_predictor(tmp_path / "device", block="day").version == 2


def test_a_reader_sees_whole_versions_while_they_come_and_go(
    tmp_path: Path, server: Server, kept: KeptPredictors
) -> None:
    server.publish(1)
    kept.renew(server.fetch)
    over, failures = threading.Event(), []

    def read() -> None:
        try:
            while not over.is_set():
                assert is_whole(load_predictor(tmp_path / "device", block="night"))
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 40):
        server.publish(number)
        kept.renew(server.fetch)
    over.set()
    reader.join()
    assert failures == []


def test_a_kill_at_any_instant_leaves_a_whole_version(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    server.publish(1)
    KeptPredictors(tmp_path / "device", print, seconds=0.0).renew(server.fetch)
    draw = random.Random(0)
    # What a killed process leaves is neither cleaned up nor finished.
    monkeypatch.setattr(kept_predictors.shutil, "rmtree", lambda *_, **__: None)
    for number in range(2, 30):
        server.publish(number)
        steps = iter(range(draw.randrange(8)))

        def step(real: Any, steps: Any = steps) -> Any:
            def stepped(*arguments: Any) -> Any:
                if next(steps, None) is None:
                    raise Killed
                return real(*arguments)

            return stepped

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", step(os.fsync))
            patch.setattr(Path, "rename", step(Path.rename))
            with suppress(Killed):
                KeptPredictors(tmp_path / "device", print, seconds=0.0).renew(server.fetch)
        found = load_predictor(tmp_path / "device", block="day")
        assert is_whole(found)


def test_registered_nodes_alone_are_given_predictors(tmp_path: Path) -> None:
    run = Server(tmp_path / "run")
    run.publish(1)

    async def play() -> None:
        async with serving(anybody=False, offer=PredictorOffer(run.folder)) as (app, fleet, _):
            stranger = await ask(app, "POST", OFFERED + "none")
            assert stranger.status == 401
            device = Device(app)
            fleet.register(device.key.public_key())
            assert (await device.begin()).status == 200
            manifest = await device.post(OFFERED + "none")
            assert (manifest.status, manifest.json()["version"]) == (200, 1)
            found = await device.post(f"{OFFERED}1/block-0.safetensors")
            assert found.body == (path_of(run.folder, 1) / "block-0.safetensors").read_bytes()
            for path in (
                "2/block-0.safetensors",
                "1/../../config.yaml",
                "1/",
                "x/y",
                "9" * 30 + "/block-0.safetensors",
            ):
                assert (await device.post(OFFERED + path)).status in (204, 404)

    asyncio.run(play())
