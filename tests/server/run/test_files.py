"""Files that are replaced: whole or not at all, and apart from what other processes write."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perennial.server.run import files
from perennial.server.run.files import aside, remove_partials, replace_file

# Opens all files that it may, frees them half a second later, and writes in between.
SHORT_OF_FILES = """
import logging, resource, sys, threading
from pathlib import Path
from perennial.server.run.files import replace_file
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
def free():
    for file in taken: file.close()
timer = threading.Timer(0.5, free)
try:
    while True: taken.append(open("/dev/null"))
except OSError:
    timer.start()
replace_file(Path(sys.argv[1]), b"new")
"""


def test_two_names_aside_are_never_the_same(tmp_path: Path) -> None:
    names = {aside(tmp_path / "a") for _ in range(100)}
    assert len(names) == 100
    assert all(f".{os.getpid()}-" in path.name for path in names)


def test_what_fails_leaves_the_old_content_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(tmp_path / "a", b"old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        replace_file(tmp_path / "a", b"new")
    assert str(tmp_path) in raised.value.filename
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_what_killed_processes_left_is_removed_files_and_folders(tmp_path: Path) -> None:
    aside(tmp_path / "a").write_bytes(b"half")
    (aside(tmp_path / "7") / "inner").mkdir(parents=True)
    (tmp_path / "a").write_bytes(b"whole")
    (tmp_path / ".lock").write_bytes(b"")
    remove_partials(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "a"]


def test_while_too_many_files_are_open_a_file_is_tried_again_and_it_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHORT_OF_FILES, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a").read_bytes() == b"new"
    assert done.stderr.count("too many files are open; it is tried again") == 1


def test_patience_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warned: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.1)

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        files.patiently(none_left, tmp_path)
    assert len(warned.records) == 1
