"""Extending as docs/architecture.md says: one of each kind, from outside, runs to a report and agrees with ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perennial import load_predictor
from perennial.common.command.errors import InputError
from perennial.server.report import html, reading
from tests import extensions
from tests.conftest import Simulate, make_data, read_metrics, read_predictors, write_folder
from tests.extensions.source import BLOCKS, CLIENTS

HERE = Path(extensions.__file__).parent
ARCHITECTURE = (HERE.parents[1] / "docs" / "architecture.md").read_text()
# A task's own network is no `model`, a data set of one's own is no folder, and a clock has the names of its blocks.
KEYS = {"strategy": "fedavgm", "engine": "loop", "model": "linear", "rounds-per-block": 2, "cycles": 2, "nodes": 2}
OWN = {
    "strategy": {"strategy": "tests.extensions.strategy:momentum"},
    "engine": {"engine": "tests.extensions.engine:PlainSGD"},
    "source": {"data": "tests.extensions.source:Drawn"},
    "task": {"task": "tests.extensions.task:labels", "model": "auto"},
    "clock": {"clock": "tests.extensions.clock:in_turns"},
}


def test_one_of_each_from_outside_runs_to_a_report_and_agrees_with_the_built_in_one(
    simulate: Simulate, tmp_path: Path
) -> None:
    data = write_folder(tmp_path / "data", make_data(BLOCKS, CLIENTS))
    runs = [{"name": "built-in"}, *({"name": name, **keys} for name, keys in OWN.items())]
    folders = simulate("all", data=str(data), runs=runs, **KEYS)
    expected, rows = read_predictors(folders["built-in"]), read_metrics(folders["built-in"])
    # One model for all blocks, which has learnt something.
    assert rows[-1]["mean-accuracy"] > rows[0]["mean-accuracy"]
    for name in OWN:
        found = read_predictors(folders[name])
        assert [list(arrays) for arrays in found] == [list(arrays) for arrays in expected], name
        for mine, ours in zip(found, expected, strict=True):
            assert all(np.abs(mine[key] - ours[key]).max() < 1e-6 for key in ours), name
        assert [row["block"] for row in read_metrics(folders[name])] == [row["block"] for row in rows]
    with pytest.raises(InputError, match=r"only tests\.extensions\.clock:in_turns knows its blocks by the time"):
        load_predictor(folders["clock"])
    html.write(tmp_path / "all", [reading.read(folder) for folder in folders.values()], "all")
    report = (tmp_path / "all" / "report.html").read_text()
    assert all(name in report for name in folders)


@pytest.mark.parametrize("name", OWN)
def test_an_extension_is_under_40_lines_and_in_the_list_of_the_architecture(name: str) -> None:
    lines = (HERE / f"{name}.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 40
    assert f"`tests/extensions/{name}.py`" in ARCHITECTURE


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"strategy": "tests.extensions.strategy:Momentum"}, "strategy '.*:Momentum' must be a Way, got"),
        ({"strategy": "momentum"}, "strategy must be one of fedavg, .*, ifca or package.module:name, got 'momentum'"),
        ({"engine": "tests.extensions.task:network"}, "engine '.*:network' must be a class with train and judge, got"),
        ({"engine": "nowhere:Engine"}, "engine 'nowhere:Engine' cannot be imported: No module named 'nowhere'"),
        ({"clock": "tests.extensions.clock:Turns"}, "clock '.*:Turns' makes no schedule: TypeError: "),
        ({"clock": "tests.extensions.task:network"}, "clock '.*:network' makes no schedule: AttributeError: "),
        ({"clock": "tests.extensions.source:BLOCKS"}, "clock '.*:BLOCKS' must be a function of the configuration, got"),
        ({"clock": "builtins:repr"}, "clock 'builtins:repr' must return a Schedule; .* has no names, cycles"),
        ({"clock": "tests.extensions.clock:in_turns", "blocks": 3}, "the clock names 2 blocks .*, the data has 3"),
    ],
)
def test_what_is_no_extension_is_refused_before_anything_is_written(
    simulate: Simulate, tmp_path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        simulate("all", **{**KEYS, "data": "digits", **keys})
    assert not (tmp_path / "all").exists()
