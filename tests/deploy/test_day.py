"""Three deployed days in fast motion: each half hour the devices predict with the predictor of that hour's block."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perennial.common.command.config import RunConfig
from perennial.common.data import shards
from perennial.common.data.source import open_shards
from perennial.server.predict.versions import numbers
from tests.deploy.lab import ROOT, SERVER, Lab, Process, device, laboratory, rows
from tests.processes import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
PROGRAM = str(Path(__file__).with_name("day.py"))
START, HALF_HOUR = datetime(2026, 3, 2, 8, 0, tzinfo=UTC), timedelta(minutes=30)
A_DAY, DAYS, DEVICES, AWAY, PAGE = 48, 3, 3, 2, 8090
# Half hours that are trained before the devices have a version.
_FIRST = 3


class Predicting:
    """A program on a device that predicts when it is told the time."""

    def __init__(self, lab: Lab, number: int) -> None:
        data = lab.folder / "shards" / "all" / "test"
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", lab.network.name(device(number)), sys.executable, PROGRAM, "predict",
             str(kept(lab, number)), str(data)],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, at: datetime) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{at.isoformat()}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Days:
    """The run, and what each device predicted with at each half hour, by device."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._hours = lab, lab.folder / "hours"
        self.predicted: list[list[dict[str, Any]]] = [[] for _ in range(DEVICES)]
        self.newest: list[int] = []
        self.output, self.code = lab.folder / "days", -1
        self.read: dict[str, str] = {}
        self._hours.write_text("0")

    def play(self) -> None:
        server = self._server()
        clients = [self._client(number) for number in range(DEVICES)]
        with ExitStack() as stack:
            programs = [Predicting(self._lab, number) for number in range(DEVICES)]
            for program in programs:
                stack.callback(program.close)
            self._have_versions(clients)
            for half_hour in range(DAYS * A_DAY):
                if half_hour == A_DAY:
                    assert clients[AWAY].end(signal.SIGTERM) == 0
                if half_hour == 2 * A_DAY:
                    self.read = {host: self._read_page(host) for host in (SERVER, device(0))}
                    self._come_back()
                self._go_to(half_hour, server)
                for program in programs:
                    program.ask(START + half_hour * HALF_HOUR)
                for number, program in enumerate(programs):
                    self.predicted[number].append(program.answer())
                self.newest.append(numbers(self.output)[-1])
            # One more look at the clock: the days are over.
            self._hours.write_text(str(DAYS * A_DAY))
            self.code = server.wait(60)

    def scores(self, number: int, day: int) -> list[float]:
        return [one["score"] for one in self.predicted[number][day * A_DAY : (day + 1) * A_DAY]]

    def versions(self, number: int, day: int) -> list[int]:
        return [one["version"] for one in self.predicted[number][day * A_DAY : (day + 1) * A_DAY]]

    def _have_versions(self, clients: list[Process]) -> None:
        """Let some half hours be trained; a device asks for predictors when it has answered an order."""
        self._hours.write_text(str(_FIRST))
        for client in clients:
            client.wait_for("predictors: version", 60)

    def _go_to(self, half_hour: int, server: Process) -> None:
        """Let the clock be there. The round of that time is trained, and the one before it is over, with its vote."""
        self._hours.write_text(str(max(half_hour, _FIRST)))
        wait_until(lambda: len(rows(self.output)) >= half_hour or not server.running(), 60, f"half hour {half_hour}")
        assert server.running(), server.said()

    def _read_page(self, host: str) -> str:
        """Return what a host gets of the page's metrics, or why it gets nothing."""
        address = "127.0.0.1" if host == SERVER else self._lab.address
        code = (
            "import sys, urllib.request as r\n"
            "try: print(r.urlopen(sys.argv[1], timeout=20).read().decode())\n"
            "except OSError as error: print(error)"
        )
        return self._lab.run(host, sys.executable, "-S", "-c", code, f"http://{address}:{PAGE}/metrics")

    def _come_back(self) -> None:
        newest = numbers(self.output)[-1]
        self._client(AWAY).wait_for(f"predictors: version {newest} is here", 60)

    def _server(self) -> Process:
        lab, tls = self._lab, self._lab.folder / "tls"
        settings = {
            "strategy": "mc-psgd", "model": "linear", "nodes": DEVICES, "cycles": DAYS, "blocks": 2,
            "clock": "day: 08:00-20:00, night: 20:00-08:00", "clock-start": START.isoformat(), "clock-step": 30,
            "local-iterations": 1, "batch-size": 8, "lr-mixed": 0.003, "lr-separate": 0.003, "eval-every": 1,
            "engine": "loop", "seed": 3, "fair-time": 0, "page": PAGE,
            "data": lab.folder / "shards" / "all", "output": self.output,
            "state-dir": lab.state, "tls-cert": tls / "server.crt", "tls-key": tls / "server.key",
        }  # fmt: skip
        flags = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PERENNIAL_TEST_HOURS", str(self._hours))
            return lab.start(SERVER, [PROGRAM, "server", *flags])

    def _client(self, number: int) -> Process:
        lab = self._lab
        flags = ["--predictors", str(kept(lab, number))]
        return lab.client(number, program=(PROGRAM, "client", *flags))


def kept(lab: Lab, number: int) -> Path:
    return lab.folder / f"predictors-{number}"


def share_out(folder: Path) -> None:
    """Give the devices all digits alike, so that what they learn together grows from day to day."""
    source = open_shards(RunConfig(data="digits", blocks=2, clients=DEVICES, labels_per_block=5, client_skew=0.0))
    shutil.rmtree(folder)
    for client in range(DEVICES):
        shards.write(folder / device(client), source, [client], with_test=False)
    shards.write(folder / "all", source, range(DEVICES))


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Days]:
    with laboratory(tmp_path_factory.mktemp("days"), 3) as lab:
        share_out(lab.folder / "shards")
        found = Days(lab)
        found.play()
        yield found


def test_the_run_ends_with_its_days(days: Days) -> None:
    assert days.code == 0
    assert [row["server-round"] for row in rows(days.output)] == list(range(1, DAYS * A_DAY + 1))


def test_prometheus_reads_the_run_on_the_server_and_nobody_does_elsewhere(days: Days) -> None:
    (rounds,) = re.findall(r'perennial_run_rounds_total\{run="days"\} (\d+)', days.read[SERVER])
    assert 2 * A_DAY - 1 <= int(rounds) <= 2 * A_DAY + 1
    assert 'perennial_run_nodes_online{run="days"} 2.0' in days.read[SERVER]
    assert "refused" in days.read[device(0)]


def test_every_half_hour_each_device_predicts_with_the_predictor_of_its_block(days: Days) -> None:
    hours = [START + half_hour * HALF_HOUR for half_hour in range(DAYS * A_DAY)]
    expected = ["day" if 8 <= at.hour < 20 else "night" for at in hours]
    for predicted in days.predicted:
        wrong = [at for at, one in enumerate(predicted) if one["block"] != expected[at]]
        # The night has no predictor before its first rounds are over; the devices say so, and use no other.
        assert set(wrong) <= {24, 25, 26}, [(at, predicted[at], days.newest[at]) for at in wrong]
        assert all(predicted[at]["block"] is None and "night" in predicted[at]["said"] for at in wrong)


def test_a_device_that_is_there_is_at_most_three_versions_behind(days: Days) -> None:
    for number in range(DEVICES - 1):
        pairs = zip(days.newest, days.predicted[number], strict=True)
        assert max(newest - one["version"] for newest, one in pairs if one["block"]) <= 3


def test_the_scores_rise_from_day_to_day(days: Days) -> None:
    for number in range(DEVICES - 1):
        means = [sum(days.scores(number, day)) / A_DAY for day in range(DAYS)]
        assert means[0] < means[1] < means[2]


def test_a_device_that_is_away_for_a_day_predicts_with_what_it_has_and_catches_up(days: Days) -> None:
    first, away, back = (days.versions(AWAY, day) for day in range(DAYS))
    assert away == [first[-1]] * A_DAY or set(away) <= {first[-1], first[-1] + 1}
    assert {one["block"] for one in days.predicted[AWAY][A_DAY : 2 * A_DAY]} == {"day", "night"}
    assert back[0] - away[-1] >= A_DAY - 3
    assert sum(days.scores(AWAY, 2)) > sum(days.scores(AWAY, 1))
    assert days.scores(AWAY, 2) == pytest.approx(days.scores(0, 2), abs=0.05)
