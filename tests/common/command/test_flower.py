"""Flower's processes as the commands start and end them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perennial.common.command import flower
from perennial.common.command.errors import RunError


def test_a_free_port_is_none_that_the_system_gives_to_others_meanwhile() -> None:
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    found = {flower.free_port() for _ in range(20)}
    assert len(found) > 1
    assert max(found) < int(first)


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(flower, "_PORTS", range(port, port + 1))
        monkeypatch.setattr(flower, "_TRIED_PORTS", 1)
        with pytest.raises(RunError, match="none was free"):
            flower.free_port()
    assert flower.free_port() == port


def test_a_flower_that_has_the_names_is_tried_and_one_that_lacks_one_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "needs_much.py").write_text("from flwr.app import Message, NoSuchName\n")
    monkeypatch.syspath_prepend(tmp_path)
    for version, module, stock, said in (
        ("1.41.0", "flwr.app", False, ""),
        ("1.42.3", "flwr.app", False, ""),
        ("1.99.0", "flwr.app", False, "x: flwr 1.99.0 is tried: the quick runtime is tested with 1.41 and 1.42\n"),
        ("1.99.0", "needs_much", True, "x: flwr 1.99.0 lacks a name that the quick runtime needs (cannot import name "),
    ):
        monkeypatch.setattr(flower, "version", lambda _, it=version: it)
        assert flower.use_stock(module, "x") is stock
        assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(("deaf", "code"), [(False, -15), (True, -9)])
def test_a_process_is_asked_to_end_and_then_made_to(deaf: bool, code: int) -> None:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else "pass"
    program = f"import signal, sys; {ignore}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        flower.end(process, 0.2 if deaf else 60)
        assert process.returncode == code
