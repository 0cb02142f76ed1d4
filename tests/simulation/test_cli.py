"""The command as a user meets it: bad input in one line, Ctrl-C without remains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perennial.common.command import console
from perennial.common.command.config import RunConfig, flags
from perennial.common.command.typed_keys import key_of
from perennial.common.data.shards import ShardFolder
from perennial.server.run.folder import RunFolder
from perennial.simulation import cli
from tests.conftest import make_data, read_metrics, read_predictors, write_folder
from tests.processes import COMMAND, command_line, descendants, environment, run_command, wait_until

# A busy machine takes its time to start Ray.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(console, "log_to_console", lambda *, verbose: None)
    (tmp_path / "file.yaml").write_text("cycles: 1\nrounds-per-block: 1\n")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line with which the command refuses; it must leave nothing behind."""
    assert cli.main(list(arguments)) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert found.err.startswith("flower-simulation: ")
    assert "Traceback" not in found.err
    assert not Path("runs").exists()
    return found.err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("clients=0", "clients must be at least 1, got 0"),
        ("decay=2", "decay must be at least 0 and at most 1, got 2"),
        ("labels-per-block=11", "labels-per-block must be in [1, 10], the labels of the data, got 11"),
        ("labels-per-block=1", "set labels-per-block to at least 2, or use more blocks"),
        ("participation=0", "participation must be more than 0 and at most 1, got 0"),
        ("client=3", "unknown key 'client'; did you mean clients?"),
        ("clients=many", "clients must be a whole number at least 1, got 'many'"),
        ("clients=1000", "too few for 1000 clients; use fewer clients or fewer blocks"),
        ("nodes=21", "nodes must be at most the 20 clients, got 21"),
        ("data=imagenet", "data must be digits, cifar10"),
        ("data=/nowhere/at/all", "/nowhere/at/all is not a folder of shards: manifest.json is missing"),
        ("data=nothing.npz", "nothing.npz does not exist"),
        ("model=resnet", "model must be one of cnn, mlp, linear or package.module:factory"),
        ("model=cnn", "model cnn needs images of at least 16x16"),
        ("model=nobody:nothing", "is its package installed here?"),
        ("strategy=sgd", "strategy must be one of fedavg"),
        ("nonsense", "--set takes key=value, got 'nonsense'"),
    ],
)
def test_bad_input_is_one_line_with_key_bound_and_remedy(
    capsys: pytest.CaptureFixture[str], setting: str, message: str
) -> None:
    assert message in refused(capsys, "run", "file.yaml", "--set", setting)


def test_an_output_of_300_characters_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "run", "file.yaml", "--set", f"output=a/{'x' * 300}")
    assert "a/xxxx" in line
    assert "File name too long" in line


def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "none.yaml does not exist" in refused(capsys, "run", "none.yaml")


def test_a_model_whose_output_does_not_fit_the_classes_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = "from torch import nn\ndef make(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9))\n"
    Path("badmodel_.py").write_text(code)
    line = refused(capsys, "run", "file.yaml", "--set", "model=badmodel_:make")
    assert "must give 10 outputs for each example, got (9,)" in line


def test_an_unreadable_manifest_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(Path("data"), make_data(2, 2))
    Path("data/manifest.json").write_text("{")
    assert "data/manifest.json cannot be read" in refused(capsys, "run", "file.yaml", "--set", "data=data")


@pytest.mark.parametrize("client", [0, 1])
def test_a_nan_in_the_data_is_one_line_before_the_first_round(capsys: pytest.CaptureFixture[str], client: int) -> None:
    data = make_data(2, 2)
    data[1][client][0][0, 0, 0] = np.nan
    write_folder(Path("data"), data)
    line = refused(capsys, "run", "file.yaml", "--set", "data=data")
    assert line == f"flower-simulation: data/client-0000{client}/block-1.npz: x has values that are not finite\n"


def test_verbose_shows_where_an_error_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--verbose", "run", "none.yaml"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["run"], ["run", "file.yaml", "--resume", "--overwrite"]])
def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(arguments)
    assert error.value.code == 2
    assert "usage: flower-simulation" in capsys.readouterr().err


def test_help_has_every_key_with_default_meaning_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["run", "--help"])
    assert error.value.code == 0
    lines = {words[0]: line for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    defaults = RunConfig().to_mapping()
    for item in flags():
        key, choices = key_of(item), item.metadata.get("choices", ())
        assert str(defaults[key]) in lines[key]
        assert item.metadata["doc"] in lines[key]
        own = ", or package.module:name" if item.metadata.get("named") else ""
        assert not choices or lines[key].endswith(f"(one of {', '.join(choices)}{own})")


def test_a_folder_with_another_run_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    run = Path("runs/file")
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 99\n")
    assert cli.main(["run", "file.yaml"]) == 2
    assert (
        "runs/file holds a run of another configuration; choose another output, or add --overwrite"
        in capsys.readouterr().err
    )
    assert (run / "config.yaml").read_text() == "seed: 99\n"


# --- Shards -----------------------------------------------------------------------------------------------------------


def test_shards_writes_a_folder_that_a_simulation_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shards", "out", "--clients", "6", "--blocks", "3"]) == 0
    assert "6 clients, 3 blocks in out" in capsys.readouterr().out
    found = ShardFolder(Path("out"))
    assert (found.clients, found.blocks) == (tuple(range(6)), 3)
    found.check()
    total = sum(len(found.shard(client, block).rows) for client in range(6) for block in range(3))
    assert total == 1437


def test_split_writes_a_folder_a_node_and_one_for_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["shards", "out", "--clients", "5", "--split", "2"]) == 0
    assert ShardFolder(Path("out/node-0")).clients == (0, 2, 4)
    assert ShardFolder(Path("out/node-1")).clients == (1, 3)
    server = ShardFolder(Path("out/server"))
    assert server.clients == ()
    assert server.test(0) is not None
    assert not Path("out/node-0/test").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clients", "0"], "clients must be at least 1, got 0"),
        (["--split", "0"], "--split must be at least 1, got 0"),
        (["--split", "-1"], "--split must be at least 1, got -1"),
        (["--clients", "3", "--split", "4"], "--split must be at most the 3 clients, got 4"),
        (["--labels-per-block", "11"], "labels-per-block must be in [1, 10]"),
    ],
)
def test_bad_shards_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in refused(capsys, "shards", "out", *arguments)
    assert not Path("out").exists()


def test_shards_are_not_written_among_others(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/kept").write_text("")
    assert "out is not empty, and old shards would mix with new" in refused(capsys, "shards", "out", "--clients", "2")


@pytest.mark.parametrize("split", [[], ["--split", "2"]])
def test_a_folder_that_cannot_hold_shards_is_one_line(capsys: pytest.CaptureFixture[str], split: list[str]) -> None:
    assert "/proc/xx cannot be written to: " in refused(capsys, "shards", "/proc/xx", *split)
    assert "file.yaml is a file; name another folder" in refused(capsys, "shards", "file.yaml", *split)


# --- The real process -------------------------------------------------------------------------------------------------


def test_the_command_itself_refuses_without_traceback(tmp_path: Path) -> None:
    done = run_command("run", "file.yaml", "--set", "decay=2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "flower-simulation: decay must be at least 0 and at most 1, got 2.0\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "kill"])
def test_a_signal_leaves_no_process_and_a_folder_that_resumes(tmp_path: Path, number: int) -> None:
    """Interrupted: no process is left, the folder is not complete, and the run goes on to the same end."""
    data = make_data(2, 4)
    write_folder(tmp_path / "data", data)
    keys = {"data": "data", "model": "linear", "cycles": 25, "rounds-per-block": 10, "local-iterations": 20, "seed": 3}
    (tmp_path / "long.yaml").write_text(json.dumps({**keys, "strategy": "mc-psgd", "output": "long"}))
    process = subprocess.Popen(
        [COMMAND, "run", "long.yaml"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    metrics = tmp_path / "long" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 5, 600, "five rounds")
    children = descendants(process.pid)
    assert any(line.startswith("ray::Worker") for line in children.values())
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == "flower-simulation: interrupted; --resume goes on from the last checkpoint"
    assert "Traceback" not in errors
    assert "logging.cc" not in errors
    wait_until(lambda: not any(command_line(pid) == line for pid, line in children.items()), 120, "the end of all")
    folder = RunFolder(tmp_path / "long")
    assert not folder.is_complete()
    assert list(folder.checkpoints.glob("*.json"))

    again = run_command("run", "long.yaml", "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    whole = run_command("run", "long.yaml", "--set", "output=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    for one, other in zip(read_predictors(tmp_path / "long"), read_predictors(tmp_path / "whole"), strict=True):
        assert all((one[name] == other[name]).all() for name in one)
    rows = read_metrics(tmp_path / "long")
    assert [row["server-round"] for row in rows] == list(range(1, 501))
    assert rows == read_metrics(tmp_path / "whole")


def test_a_shard_that_cannot_be_read_fails_the_run_by_name_and_leaves_nothing_that_looks_complete(
    tmp_path: Path,
) -> None:
    write_folder(tmp_path / "data", make_data(1, 2))
    np.savez(tmp_path / "data" / "client-00001" / "block-0.npz", x=np.zeros((3, 2, 3)), y=np.zeros(3, int))
    settings = ["data=data", "model=linear", "round-attempts=2", "min-replies=1", "output=bad"]
    done = run_command("run", "file.yaml", *(part for one in settings for part in ("--set", one)), cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert "client-00001/block-0.npz" in done.stderr
    assert "Traceback" not in done.stderr
    assert not RunFolder(tmp_path / "bad").is_complete()
