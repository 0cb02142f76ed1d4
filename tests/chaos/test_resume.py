"""Going on from checkpoints that are damaged, foreign or short of metrics; temporary folders of killed owners."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, RunError
from perennial.server.cohort.roster import Roster
from perennial.server.run.training import _say_what_is_averaged
from perennial.simulation.scratch import remove_abandoned, scratch_folder
from tests.conftest import Simulate, make_data, read_metrics, write_folder
from tests.processes import wait_until
from tests.server.conftest import FakeGrid

KEYS = {
    "model": "linear", "cycles": 2, "rounds-per-block": 3, "batch-size": 2, "local-iterations": 2, "participation": 0.5,
    "checkpoint-every": 1, "seed": 7, "lr-mixed": 0.3, "lr-separate": 0.2,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "data", make_data(2, 6))


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    caplog.set_level(logging.WARNING, "perennial")
    return caplog


def content(run: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((run / "predictors").glob("*.safetensors"))]


def unfinished(run: Path) -> None:
    """Make a finished run look as if it was killed after its last checkpoint."""
    for path in (run / "predictors").iterdir():
        path.unlink()


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_a_truncated_checkpoint_gives_way_and_the_end_is_the_same(
    simulate: Simulate, folder: Path, warned: pytest.LogCaptureFixture, suffix: str
) -> None:
    whole = simulate("whole", data=folder, **KEYS)[""]
    run = simulate("run", data=folder, **KEYS)[""]
    unfinished(run)
    damaged = run / "checkpoint" / f"00000012.{suffix}"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    simulate("run", resume=True, data=folder, **KEYS)
    assert "is damaged" in warned.text
    assert content(run) == content(whole)
    assert read_metrics(run) == read_metrics(whole)
    assert sorted(path.name for path in (run / "checkpoint").glob("*.json")) == ["00000011.json", "00000012.json"]


def test_two_damaged_checkpoints_end_the_run_with_a_remedy(simulate: Simulate, folder: Path) -> None:
    run = simulate("run", data=folder, **KEYS)[""]
    unfinished(run)
    for path in (run / "checkpoint").glob("*.json"):
        path.write_bytes(b"")
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole; start anew"):
        simulate("run", resume=True, data=folder, **KEYS)


@pytest.mark.parametrize("change", [{"lr-mixed": 0.4}, {"seed": 8}, {"cycles": 3}, {"aggregation": "median"}])
def test_another_configuration_is_refused_by_the_difference(
    simulate: Simulate, folder: Path, change: dict[str, Any]
) -> None:
    run = simulate("run", data=folder, **KEYS)[""]
    unfinished(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}
    (key, value), old = next(iter(change.items())), {**RunConfig().to_mapping(), **KEYS}
    with pytest.raises(InputError, match=f"the checkpoint has {key} = {old[key]!r}, this run {value!r}"):
        simulate("run", resume=True, data=folder, **{**KEYS, **change})
    # A configuration file that was edited does not help either: the checkpoint has its own.
    config = run / "config.yaml"
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **change}))
    with pytest.raises(InputError, match=f"the checkpoint has {key} = {old[key]!r}, this run {value!r}"):
        simulate("run", resume=True, data=folder, **{**KEYS, **change})
    assert all(path.read_bytes() == old for path, old in before.items() if path != config)


def test_metrics_that_lost_lines_are_said_and_what_is_left_is_used(
    simulate: Simulate, folder: Path, warned: pytest.LogCaptureFixture
) -> None:
    run = simulate("run", data=folder, **KEYS)[""]
    unfinished(run)
    metrics, whole = run / "metrics.jsonl", read_metrics(run)
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:-1]))
    simulate("run", resume=True, data=folder, **KEYS)
    assert re.search(r"metrics.jsonl has \d+ bytes, and had \d+ when the checkpoint was written", warned.text)
    assert read_metrics(run) == whole[:-1]


def test_a_folder_of_format_1_is_refused_with_what_to_do(simulate: Simulate, folder: Path) -> None:
    run = simulate("run", data=folder, **KEYS)[""]
    unfinished(run)
    for path in (run / "checkpoint").glob("*.json"):
        body = json.dumps({"format": 1})
        path.write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}))
    with pytest.raises(InputError, match="has format 1, not 2; go on with the version of Perennial that wrote it, or"):
        simulate("run", resume=True, data=folder, **KEYS)


# --- Temporary folders ------------------------------------------------------------------------------------------------


HOLD = """
import sys
from perennial.simulation.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "file").write_text("x")
    sys.stdin.read()
"""


def end(owner: subprocess.Popen[bytes]) -> None:
    owner.kill()
    owner.communicate()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose name leaves room for Ray's sockets, as those of pytest do not."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def test_the_folder_of_a_killed_owner_is_removed_and_that_of_a_living_one_is_not(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    (short_folder / "perennial-not-ours").mkdir()
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    # They hold their folders until this process closes their input, which it does by ending too.
    command = [sys.executable, "-c", HOLD]
    owners = [subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) for _ in range(2)]
    wait_until(lambda: len(list(short_folder.glob("perennial-*/file"))) == 2, 600, "two folders")
    end(owners[0])
    remove_abandoned()
    left = [path.parent for path in short_folder.glob("perennial-*/file")]
    end(owners[1])
    assert len(left) == 1
    with scratch_folder() as own:
        assert own.exists()
        assert not left[0].exists()
    assert [path.name for path in short_folder.iterdir()] == ["perennial-not-ours"]


# --- Nodes that say nothing, and what a median is of ------------------------------------------------------------------


class Mute(FakeGrid):
    """Node 9 takes its time and says nothing."""

    waited = 0.0

    def _answer(self, message: Any) -> Any:
        if message.metadata.dst_node_id == 9:
            self.queries.append(9)
            Mute.waited += 30.0
            return None
        return super()._answer(message)


def test_a_node_that_never_says_who_it_is_does_not_cost_every_round_the_timeout(
    flower_identity: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    Mute.waited = 0.0
    monkeypatch.setattr("perennial.server.cohort.roster.time.monotonic", lambda: clock[0] + Mute.waited)
    grid = Mute({5: (0,), 9: (1,)})
    roster = Roster(RunConfig(), 2)
    for _ in range(1000):
        roster.refresh(grid)
        clock[0] += 10.0
    assert roster.cohort(1, 0) == {5: (0,)}
    assert 3 < grid.queries.count(9) < 20
    assert Mute.waited < 0.1 * clock[0]


@pytest.mark.parametrize(("aggregation", "nodes", "told"), [
    ("median", {5: (0, 1), 9: (2,)}, True), ("trimmed-mean", {5: (0, 1), 9: (2,)}, True),
    ("median", {5: (0,), 9: (2,)}, False), ("mean", {5: (0, 1), 9: (2,)}, False),
])  # fmt: skip
def test_a_run_with_several_clients_a_node_is_told_what_its_median_is_of(
    flower_identity: None, warned: pytest.LogCaptureFixture, aggregation: str, nodes: dict[int, Any], told: bool
) -> None:
    config = RunConfig(aggregation=aggregation)
    roster = Roster(config, 2)
    roster.gather(FakeGrid(nodes), 2)
    _say_what_is_averaged(config, roster)
    assert ("is over nodes, each already the mean of up to 2 clients" in warned.text) == told
    assert len(warned.records) == told
