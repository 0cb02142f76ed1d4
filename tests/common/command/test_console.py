"""How a command ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perennial.common.command import console, places
from perennial.common.command.errors import InputError, RunError


@pytest.mark.parametrize(("error", "code"), [(InputError("bad key"), 2), (RunError("no node"), 1)])
def test_an_error_that_was_foreseen_is_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    assert console.run(fail, "command") == code
    assert capsys.readouterr().err == f"command: {error}\n"


def test_a_path_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        (tmp_path / "none" / "folder").mkdir()
        return 0

    assert console.run(fail, "command") == 2
    assert capsys.readouterr().err.startswith(f"command: {tmp_path}/none/folder: No such file or directory;")


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise OSError(28, "No space left on device", "metrics.jsonl")

    assert console.run(fail, "command") == 1
    assert capsys.readouterr().err.startswith("command: the disk is full (metrics.jsonl); make room")


def test_a_full_disk_names_the_folder_whoever_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        with places.writing_to(tmp_path):
            raise OSError(28, "No space left on device")

    assert console.run(fail, "command") == 1
    assert capsys.readouterr().err.startswith(f"command: the disk is full ({tmp_path}); make room")


def test_a_path_of_300_characters_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        return int((tmp_path / ("x" * 300) / "run").exists())

    assert console.run(fail, "command") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"command: {tmp_path}/xxx")
    assert "characters): File name too long; give a path that can be used\n" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit(15), ImportError("half")])
def test_sigterm_ends_a_command_with_143_whatever_comes_of_it(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        raise error

    assert console.run(fail, "command", interrupted="go on") == 143
    assert capsys.readouterr().err == "\ncommand: interrupted; go on\n"


def test_a_reader_that_has_seen_enough_ends_the_command_quietly() -> None:
    code = (
        "from perennial.common.command import console\n"
        "print(console.run(lambda: print('x' * 10**6, flush=True) or 0, 'command'))"
    )
    command = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.read(1)
    command.stdout.close()
    assert command.stderr.read() == ""
    command.stderr.close()
    command.wait(60)
