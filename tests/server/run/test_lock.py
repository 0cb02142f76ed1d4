"""A folder has one holder, who says who it is; what a kill leaves is no obstacle."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perennial.common.command.errors import InputError
from perennial.server.run import lock
from perennial.server.run.lock import hold

HOLDER = """
import sys
from pathlib import Path
from perennial.server.run.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
FORKING = """
import os, sys, time
from pathlib import Path
from perennial.server.run.lock import hold
with hold(Path(sys.argv[1])):
    if not os.fork():
        print(os.getpid(), flush=True)
        sys.stdin.read()
        os._exit(0)
    sys.stdin.read()
"""


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    with started(HOLDER, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_holds_the_folder_and_since_when(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    says = (
        rf"^{re.escape(str(tmp_path))} is held by process {holder.pid} on {re.escape(os.uname().nodename)} since "
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00; wait for it, or name another folder$"
    )
    with pytest.raises(InputError, match=says), hold(tmp_path):
        pass


def test_a_refused_holder_leaves_the_lock_as_it_is(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    for _ in range(3):
        with pytest.raises(InputError, match=f"process {holder.pid} "), hold(tmp_path):
            pass
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == holder.pid


def test_a_lock_left_by_a_kill_is_no_obstacle(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    assert (tmp_path / ".lock").read_text() != ""
    with hold(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_a_child_that_outlives_a_killed_holder_does_not_hold_the_folder(tmp_path: Path) -> None:
    with started(FORKING, tmp_path) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        os.kill(child, 0)
        with hold(tmp_path):
            pass


def test_one_process_cannot_hold_a_folder_twice(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(InputError, match=f"held by process {os.getpid()} "), hold(tmp_path):
        pass


def test_a_folder_can_be_held_again_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), hold(tmp_path):
        raise RuntimeError
    with hold(tmp_path):
        pass


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    with hold(tmp_path / "deep" / "run"):
        assert (tmp_path / "deep" / "run" / ".lock").exists()


def test_folders_are_held_apart(tmp_path: Path) -> None:
    with hold(tmp_path / "a"), hold(tmp_path / "b"):
        pass


def test_a_lock_file_removed_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, calls = fcntl.flock, iter(range(10))

    def removing(descriptor: int, operation: int) -> None:
        if next(calls) == 0:
            (tmp_path / ".lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removing)
    with hold(tmp_path), pytest.raises(InputError, match="is held by"), hold(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 5}', "\x00" * 2000])
def test_a_holder_that_has_not_said_who_it_is_is_another_process(tmp_path: Path, content: str) -> None:
    with hold(tmp_path):
        (tmp_path / ".lock").write_text(content)
        with pytest.raises(InputError, match="is held by another process; wait for it"), hold(tmp_path):
            pass


def test_a_file_system_without_locks_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nothing(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", nothing)
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    lock._say_that_nothing_locks.cache_clear()
    with caplog.at_level(logging.WARNING, "perennial"):
        for _ in range(3):
            with hold(tmp_path):
                pass
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path} is on a file system without locks: see to it that no other process writes there"
    ]
