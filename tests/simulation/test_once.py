"""Everything once: how often each process of an experiment opens its data and builds its network."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import make_data, write_folder
from tests.processes import COMMAND, environment

# Python imports this module at the start of every process, and so before anything is opened.
WATCH = """
import os, sys

def watch(event, arguments):
    if event == "open" and str(arguments[0]).startswith({data!r}):
        with open({log!r}, "a") as log:
            print(os.getpid(), os.path.relpath(arguments[0], {data!r}), file=log)

sys.addaudithook(watch)
"""
FACTORY = """
import os
from torch import nn

def make(shape, classes):
    with open({log!r}, "a") as log:
        print(os.getpid(), "build", file=log)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, classes))
"""
# Two passes of three runs each; and more nodes than a machine of a few cores has workers.
EXPERIMENT = """
strategy: [fedavg, mm-psgd, mc-psgd]
lr-mixed: [0.1, 0.2]
model: counted:make
nodes: 12
cycles: 2
rounds-per-block: 2
local-iterations: 1
eval-every: 1
"""
PASSES = 2


@pytest.mark.timeout(900)
def test_each_process_builds_the_network_and_opens_the_shards_once_for_a_pass(tmp_path: Path) -> None:
    data, log = write_folder(tmp_path / "data", make_data(2, 12)), tmp_path / "log"
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(WATCH.format(data=str(data), log=str(log)))
    (tmp_path / "counted.py").write_text(FACTORY.format(log=str(log)))
    (tmp_path / "file.yaml").write_text(f"{EXPERIMENT}data: {data}\n")
    search = os.pathsep.join(filter(None, (str(tmp_path / "hook"), os.environ.get("PYTHONPATH"))))
    command = subprocess.Popen(
        [COMMAND, "run", "file.yaml"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=search),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said, _ = command.communicate(timeout=800)
    assert command.returncode == 0, said

    found = _by_process(log)
    server = found.pop(command.pid)
    # All data are checked before the first round, once for both passes; test sets are read again to be used.
    tests = {"test/block-0.npz": PASSES + 1, "test/block-1.npz": PASSES + 1}
    checked = {f"client-{client:05d}/block-{block}.npz": 1 for client in range(12) for block in range(2)}
    # Engines are tried on a client's examples, once for each pass.
    checked["client-00000/block-0.npz"] += PASSES
    assert server == {"build": PASSES, "manifest.json": PASSES, **tests, **checked}
    assert found, "no worker opened anything"
    for worker in found.values():
        # The second pass trains the same network, which the worker keeps.
        assert worker.pop("build") == 1
        assert worker.pop("manifest.json") == PASSES
        # All clients take part in every round, and each is read once in a pass.
        assert set(worker.values()) == {PASSES}
    shards = [file for worker in found.values() for file in worker]
    assert len(shards) == len(set(shards)) == 12 * 2


def _by_process(log: Path) -> dict[int, Counter[str]]:
    """Return how often each process built the network, and opened each file of the folder."""
    found: dict[int, Counter[str]] = {}
    for line in log.read_text().splitlines():
        process, _, what = line.partition(" ")
        found.setdefault(int(process), Counter())[what] += 1
    return found
