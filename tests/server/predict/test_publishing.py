"""Published versions: whole or not there, whoever reads and whatever ends the publisher."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from perennial.common.command.errors import InputError
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.publishing import ModelSpec, publish, settle
from perennial.server.predict.versions import check, numbers, path_of, read_manifest
from perennial.server.run.tree import DamagedError
from tests.server.predict.published import BY_CLOCK, CONFIG, arrays, is_whole, publication

KILLS = 50


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_versions_are_numbered_from_one_and_the_last_few_are_kept(tmp_path: Path) -> None:
    assert [publish(tmp_path, publication(n), kept=3) for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in (tmp_path / "versions").iterdir()) == ["3", "4", "5"]


def test_a_version_has_a_file_for_each_block_and_a_manifest_with_their_checksums(tmp_path: Path) -> None:
    model = ModelSpec("linear", (3, 4), 2)
    publish(tmp_path, publication(7, model=model, data="shards:12ab", scores=(0.5, float("nan"))))
    folder = tmp_path / "versions" / "1"
    assert sorted(path.name for path in folder.iterdir()) == [
        "block-0.safetensors", "block-1.safetensors", "manifest.json",
    ]  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    stored = load_file(folder / "block-1.safetensors")
    assert {name: (one.dtype, one.tolist()) for name, one in stored.items()} == {
        name: (one.dtype, one.tolist()) for name, one in arrays(7, 1).items()
    }
    told = {
        key: manifest[key] for key in manifest if key not in ("sha256", "checksum", "software", "published", "trained")
    }
    assert told == {
        "format": 2, "run": "5f0c", "version": 1, "strategy": "mc-psgd", "blocks": ["day", "night"], "folded": [7, 7],
        "slot": {"server-round": 7, "cycle": 0, "block": 1, "round-in-block": 3},
        "score": "accuracy", "scores": [0.5, None], "schedule": BY_CLOCK, "data": "shards:12ab",
        "model": {"name": "linear", "shape": [3, 4], "classes": 2},
        "config-sha256": hashlib.sha256(json.dumps(CONFIG, sort_keys=True).encode()).hexdigest(),
    }  # fmt: skip
    assert manifest["software"]["numpy"] == np.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", manifest["published"])
    assert manifest["trained"] == [manifest["published"]] * 2


def test_a_block_was_last_trained_when_its_count_last_rose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = {"predictors": (None, arrays(1, 1)), "folded": (0, 1)}
    publish(tmp_path, publication(1, **none))
    first = read_manifest(path_of(tmp_path, 1))
    assert first["trained"] == [None, first["published"]]
    # As if the first one had been published long ago.
    early = {**first, "published": "2020-01-01T00:00:00+00:00", "trained": [None, "2020-01-01T00:00:00+00:00"]}
    monkeypatch.setattr("perennial.server.predict.publishing.read_manifest", lambda _: early)
    publish(tmp_path, publication(2, folded=(1, 1)))
    second = read_manifest(path_of(tmp_path, 2))
    assert second["trained"] == [second["published"], "2020-01-01T00:00:00+00:00"]
    publish(tmp_path, publication(2, folded=(1, 1), run="other"))
    assert "2020-01-01T00:00:00+00:00" not in read_manifest(path_of(tmp_path, 3))["trained"]


def test_an_untrained_block_has_no_file(tmp_path: Path) -> None:
    publish(tmp_path, publication(1, predictors=(arrays(1, 0), None), folded=(3, 0)))
    assert list(read_manifest(path_of(tmp_path, 1))["sha256"]) == ["block-0.safetensors"]


def test_arrays_that_lie_otherwise_in_memory_keep_their_values(tmp_path: Path) -> None:
    odd = {"a": np.arange(12.0).reshape(3, 4).T, "b": np.arange(10)[::3], "c": np.arange(3, dtype=">i4")}
    publish(tmp_path, publication(1, predictors=(odd, odd)))
    found = load_predictor(tmp_path, block="day").arrays
    assert {name: one.tolist() for name, one in found.items()} == {name: one.tolist() for name, one in odd.items()}


def test_an_array_that_cannot_be_kept_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    publish(tmp_path, publication(1))
    before = content(tmp_path)
    odd = {"w": np.zeros(2, np.complex64)}
    with pytest.raises(InputError, match="block night: w is complex64, which safetensors cannot keep"):
        publish(tmp_path, publication(2, predictors=(odd | arrays(2, 0) | {"w": np.zeros(1)}, odd)))
    assert content(tmp_path) == before


def test_numbers_go_on_from_the_final_predictors_if_the_versions_are_gone(tmp_path: Path) -> None:
    for n in (1, 2):
        publish(tmp_path, publication(n))
    settle(tmp_path)
    for path in sorted((tmp_path / "versions").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert publish(tmp_path, publication(3)) == 3


def test_the_predictors_at_the_end_are_the_newest_version(tmp_path: Path) -> None:
    (tmp_path / "predictors").mkdir()
    for stale in ("block-7.safetensors", "manifest.json", ".block-0.safetensors.1-a.partial"):
        (tmp_path / "predictors" / stale).write_text("of an earlier run")
    for n in (1, 2):
        publish(tmp_path, publication(n))
    settle(tmp_path)
    assert content(tmp_path / "predictors") == content(path_of(tmp_path, 2))
    assert check(tmp_path / "predictors")["version"] == 2


def test_a_damaged_version_is_not_made_the_final_one(tmp_path: Path) -> None:
    publish(tmp_path, publication(1))
    path = path_of(tmp_path, 1) / "block-1.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DamagedError, match=r"block-1\.safetensors: its checksum is not the manifest's"):
        settle(tmp_path)
    assert not (tmp_path / "predictors" / "manifest.json").exists()


@pytest.mark.parametrize("writes", [1, 2, 3, 4])
def test_a_disk_that_is_full_leaves_the_old_versions_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    publish(tmp_path, publication(1))
    before = content(tmp_path)
    fsync, calls = os.fsync, iter(range(1, 100))

    def full(descriptor: int) -> None:
        if next(calls) == writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        publish(tmp_path, publication(2))
    assert content(tmp_path) == before
    assert load_predictor(tmp_path, block="day").version == 1
    assert publish(tmp_path, publication(2)) == 2


def test_what_a_killed_publisher_left_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    left = tmp_path / "versions" / ".1.99-abcd.partial"
    left.mkdir(parents=True)
    (left / "block-0.safetensors").write_bytes(b"half")
    assert publish(tmp_path, publication(1)) == 1
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["1"]


def test_readers_in_threads_get_whole_versions_in_order_while_new_ones_are_published(tmp_path: Path) -> None:
    publish(tmp_path, publication(1))
    over, failures, counts = threading.Event(), [], []

    def read(block: str) -> None:
        last, count = 0, 0
        try:
            while not over.is_set():
                found = load_predictor(tmp_path, block=block)
                assert is_whole(found)
                assert found.version >= last
                last, count = found.version, count + 1
        except BaseException as error:
            failures.append(error)
        counts.append(count)

    threads = [threading.Thread(target=read, args=(block,)) for block in ("day", "night") * 2]
    for thread in threads:
        thread.start()
    for n in range(2, 101):
        # One is kept, so that versions go away while they are read.
        publish(tmp_path, publication(n), kept=1)
    over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(counts) > 0
    assert numbers(tmp_path) == [100]


class Publisher:
    """A process that publishes once it is told to, until it is killed."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.server.predict.published", str(folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def publish_for(self, seconds: float) -> None:
        with self._process as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            # A random instant is the point here: there is no condition to wait for.
            time.sleep(seconds)
            process.kill()


@pytest.mark.timeout(280)
def test_a_publisher_that_is_killed_at_any_instant_never_leaves_half_a_version(tmp_path: Path) -> None:
    draw, half_written = random.Random(0), 0
    over, failures, seen = threading.Event(), [], set()
    (tmp_path / "versions").mkdir()

    def read() -> None:
        try:
            for block in itertools.cycle(["day", "night"]):
                if over.is_set():
                    return
                if numbers(tmp_path):
                    found = load_predictor(tmp_path, block=block)
                    assert is_whole(found)
                    assert found.manifest["slot"]["server-round"] == found.version
                    seen.add(found.version)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    # The next ones start while one is at work.
    waiting = [Publisher(tmp_path) for _ in range(2)]
    for kill in range(KILLS):
        if kill + len(waiting) < KILLS:
            waiting.append(Publisher(tmp_path))
        waiting.pop(0).publish_for(draw.random() * 0.2)
        half_written += any((tmp_path / "versions").glob(".*.partial"))
        for number in numbers(tmp_path):
            assert check(path_of(tmp_path, number))["version"] == number
    over.set()
    reader.join()
    assert failures == []
    # The kills fell where they were meant to, and the reader read.
    assert half_written > KILLS // 5
    assert len(seen) > 2
