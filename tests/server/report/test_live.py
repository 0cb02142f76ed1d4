"""The live page's own process: what it answers, what it tells, whom it refuses, and that it ends with the run."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from benchmarks.processes import family, wait_until
from perennial.common.command.errors import InputError
from perennial.server.report import html, reading
from perennial.server.report.web.beside import page_beside
from perennial.server.run.metrics import MetricsFile
from tests.server.report.records import CONFIG, eight_rounds


class Viewer:
    """A reader of the events of a page, and a client of its other addresses."""

    def __init__(self, port: int) -> None:
        self.port, self.parts, self.over = port, dict[str, str](), ""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request("GET", "/events")
        self._events = self._connection.getresponse()
        assert self._events.getheader("content-type", "").startswith("text/event-stream")

    def next(self) -> str:
        """Take one event; return its name."""
        lines: dict[str, str] = {}
        while line := self._events.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            lines[name] = value
        if lines.get("event") == "parts":
            self.parts |= json.loads(lines["data"])["parts"]
        elif lines.get("event") == "over":
            self.over = json.loads(lines["data"])
        return lines.get("event", "")

    def until(self, text: str) -> None:
        while text not in self.parts.get("now", ""):
            assert self.next() != "over"

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def close(self) -> None:
        self._events.close()
        self._connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path / "run"


@pytest.fixture
def metrics(folder: Path) -> Iterator[MetricsFile]:
    with closing(MetricsFile(folder / "metrics.jsonl", "a")) as found:
        yield found


def port_of(said: str) -> int:
    return int(said.split("page: http://127.0.0.1:")[1].split("/")[0])


def test_a_page_follows_its_run_and_ends_as_the_report(
    folder: Path, metrics: MetricsFile, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = eight_rounds()
    with page_beside("0", [folder], "My <run>", anew=False):
        viewer = Viewer(port_of(capsys.readouterr().err))
        viewer.next()
        assert "has not finished a round yet" in viewer.parts["about"]
        for row in rows[:3]:
            metrics.append(row)
        viewer.until("<dd>3 of 8</dd>")
        status, page = viewer.get("/")
        assert (status, page.count("&lt;run&gt;")) == (200, 2)
        assert "<dd>3 of 8</dd>" in page
        assert 'perennial_run_rounds_total{run="run"} 3.0' in viewer.get("/metrics")[1]
        for row in rows[3:]:
            metrics.append(row)
        viewer.until("<dd>8 of 8</dd>")
        refusals(viewer)
    with closing(viewer):
        while not viewer.over:
            viewer.next()
    assert viewer.over == "The run has stopped; this is its last state"
    report = html.page([reading.read(folder)], "My <run>")
    for name, part in viewer.parts.items():
        assert f'<section id="{name}"{"" if part else " hidden"}>{part}</section>' in report
    with pytest.raises(ConnectionRefusedError):
        viewer.get("/")


def refusals(viewer: Viewer) -> None:
    """Nothing on the page changes anything, and pages of others cannot read it by a name of theirs."""
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/events", "/metrics"):
            assert viewer.get(path, method)[0] == 405
    assert viewer.get("/../../etc/passwd")[0] == viewer.get("/config.yaml")[0] == 404
    for path in ("/", "/events", "/metrics"):
        assert viewer.get(path, host="evil.example:80")[0] == 421
    for host in ("localhost", "127.0.0.1:1", "[::1]:8080"):
        assert viewer.get("/", host=host)[0] == 200


PARENT = """
import os, sys, time
from pathlib import Path
from perennial.server.report.web.beside import page_beside
with page_beside("0", [Path(sys.argv[1])], "t", anew=False):
    print("up", flush=True)
    time.sleep(600)
"""


def test_the_page_is_nice_and_goes_with_a_run_that_is_killed(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "up\n"
        (child,) = family(process.pid) - {process.pid}
        assert os.getpriority(os.PRIO_PROCESS, child) == 19
        assert os.sched_getscheduler(child) == os.SCHED_IDLE
        process.kill()
        process.wait()
    wait_until(lambda: not is_running(child), 20, "the end of the page")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("address", ["", "x", "-1", "70000", "127.0.0.1:", ":8080", "1:2:3:x", "８０"])
def test_an_address_that_is_none_is_refused(address: str, folder: Path) -> None:
    with (
        pytest.raises(InputError, match=r"--page must be PORT or HOST:PORT"),
        page_beside(address, [folder], "t", anew=False),
    ):
        pass


def test_a_port_that_is_taken_is_refused_before_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with page_beside("0", [folder], "t", anew=False):
        port = port_of(capsys.readouterr().err)
        with (
            pytest.raises(InputError, match="cannot be listened on"),
            page_beside(str(port), [folder], "t", anew=False),
        ):
            pass


def test_a_page_beyond_loopback_is_said_loudly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with page_beside("0.0.0.0:0", [folder], "t", anew=False):
        assert "THE PAGE IS OPEN TO EVERYBODY WHO REACHES 0.0.0.0" in capsys.readouterr().err


def test_without_an_address_there_is_no_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with page_beside(None, [folder], "t", anew=False):
        assert capsys.readouterr().err == ""
