"""``flower-predict``: the examples of its page as they stand, its output, and bad input in one line."""

from __future__ import annotations

import doctest
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.common.data import manifest
from perennial.common.data.examples import Signature
from perennial.server.predict.cli import main
from perennial.server.predict.publishing import publish
from perennial.server.predict.versions import path_of
from tests.server.predict.published import BY_ROUNDS, answer, learnt, publication

PAGE = Path(__file__).resolve().parents[3] / "docs" / "predict.md"
COMMANDS = [line for line in PAGE.read_text().splitlines() if line.startswith("flower-predict ")]
X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
Command = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page names: a run with versions 1 and 2, a folder of shards, and examples."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        publish(tmp_path / "runs" / "demo", learnt(number))
    (tmp_path / "day.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    np.savez(tmp_path / "night.npz", x=X)
    manifest.write(tmp_path / "shards", Signature.labelled((3,), 4), 2, [0])
    for block in range(2):
        for place in ("client-00000", "test"):
            (tmp_path / "shards" / place).mkdir(exist_ok=True)
            # The outputs are all alike, so that the label is 0.
            np.savez(tmp_path / "shards" / place / f"block-{block}.npz", x=X, y=np.array([0, block]))
    return tmp_path


@pytest.fixture
def command(here: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(line: str) -> tuple[int, str, str]:
        code = main(shlex.split(line.removeprefix("flower-predict ")))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.mark.parametrize("line", [line for line in COMMANDS if not re.search(r"serve|onnx", line)])
def test_the_commands_of_the_page_run(command: Command, line: str) -> None:
    code, _, error = command(line)
    assert code == 0, error


def test_the_examples_of_the_page_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert found.attempted > 8
    assert found.failed == 0


def test_show_has_blocks_scores_sizes_and_versions(command: Command) -> None:
    code, out, _ = command("show runs/demo")
    assert code == 0
    assert "versions: 1, 2\n" in out
    assert "schedule: day: 08:00-20:00, night: 20:00-08:00 (Europe/Berlin)\n" in out
    (line,) = re.findall("night .*", out)
    assert line.split()[:3] == ["night", "0.7500", "2"]
    assert line.split()[4] == str((path_of(Path("runs/demo"), 2) / "block-1.safetensors").stat().st_size)
    assert "version 1 of" in command("show runs/demo --version 1")[1]


@pytest.mark.parametrize(
    ("options", "version", "block"),
    [("--input day.csv --block day", 2, "day"), ("--input night.npz --block 1", 2, "night"),
     ("--input day.csv --at 2026-01-05T12:00+01:00 --version 1", 1, "day")],
)  # fmt: skip
def test_run_prints_outputs_and_names_block_and_version(
    command: Command, options: str, version: int, block: str
) -> None:
    code, out, error = command(f"run runs/demo {options}")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "output[0],output[1],output[2],output[3]"
    assert [[float(cell) for cell in line.split(",")] for line in lines[1:]] == answer(X, version, block).tolist()
    assert f"block {block}, version {version}: 2 examples" in error


def test_run_writes_files_that_have_what_it_would_print(command: Command) -> None:
    for name in ("out.npz", "out.csv"):
        assert command(f"run runs/demo --input day.csv --block day --output {name}")[:2] == (0, "")
    assert np.load("out.npz")["output"].tolist() == answer(X, 2, "day").tolist()
    assert Path("out.csv").read_text() == command("run runs/demo --input day.csv --block day")[1]


def test_eval_scores_each_block_on_test_sets_or_on_what_clients_hold(command: Command, here: Path) -> None:
    for what in ("test sets", "what its clients hold"):
        code, out, _ = command("eval runs/demo --data shards")
        assert code == 0
        assert f"({what})" in out
        assert re.search(r"day +1\.0000 +2\n", out)
        assert re.search(r"night +0\.5000 +2\n", out)
        assert re.search(r"mean +0\.7500", out)
        if what == "test sets":
            for path in (here / "shards" / "test").iterdir():
                path.unlink()


def spoil() -> None:
    path = path_of(Path("runs/demo"), 2) / "block-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def csv_of(text: str) -> Callable[[], Any]:
    return lambda: Path("bad.csv").write_text(text)


@pytest.mark.parametrize(
    ("make", "line", "says"),
    [
        (None, "show nowhere", "nowhere does not exist; name a run's folder"),
        (None, "show runs", "holds some; name one of them: demo"),
        (None, "show runs/demo --version 9", "runs/demo has no version 9; it has 1, 2"),
        (None, "run runs/demo --input no.csv --block day", "no.csv does not exist"),
        (None, "run runs/demo --input shards --block day", "shards must end in .npz or .csv"),
        (None, "run runs/demo --input day.csv --block dusk", "there is no block 'dusk'; the blocks are: day, night"),
        (None, "run runs/demo --input day.csv --at 2026-01-05T12:00", "at must be a time with a zone"),
        (None, "run runs/demo --input day.csv --at noon", "--at must be a time with its zone"),
        (None, "run runs/demo --input day.csv --block day --output x.txt", "x.txt must end in .npz or .csv"),
        (csv_of("1,2\n"), "run runs/demo --input bad.csv --block day", "line 1: an example has 3 numbers, got 2"),
        (csv_of("1,2,3\n1,x,3\n"), "run runs/demo --input bad.csv --block day", "line 2: 'x' is no number"),
        (csv_of("1,2,nan\n"), "run runs/demo --input bad.csv --block day", "values that are not finite"),
        (csv_of(""), "run runs/demo --input bad.csv --block day", "bad.csv has no examples"),
        (lambda: Path("bad.csv").write_bytes(b"\xff"), "run runs/demo --input bad.csv --block day", "cannot be read"),
        (lambda: np.savez("bad.npz", x=X.astype(float)), "run runs/demo --input bad.npz --block day",
         "x must be float32 of shape (n, 3), here with n = 2, got float64 (2, 3)"),
        (lambda: np.savez("bad.npz", z=X), "run runs/demo --input bad.npz --block day", "no array"),
        (spoil, "run runs/demo --input day.csv --block day --version 2", "its checksum is not the manifest's"),
        (spoil, "export runs/demo --format torch-export", "its checksum is not the manifest's"),
        (spoil, "eval runs/demo --data shards", "its checksum is not the manifest's"),
        (None, "eval runs/demo --data runs", "runs is not a folder of shards"),
        (lambda: publish(Path("runs/demo"), publication(3)), "run runs/demo --input day.csv --block day",
         "the run names no model that could be built"),
        (lambda: publish(Path("runs/demo"), learnt(3, schedule=BY_ROUNDS)), "run runs/demo --input day.csv",
         "the run counts rounds and has no clock; give block, one of: day, night"),
        (None, "serve runs/demo --host 0.0.0.0", "0.0.0.0 is not loopback: give --token-file"),
        (lambda: Path("short").write_text("abc"), "serve runs/demo --token-file short", "one token of at least 16"),
        (lambda: Path("t").write_text("x" * 20), "serve runs/demo --host 0.0.0.0 --token-file t",
         "give --tls-cert and --tls-key"),
        (None, "serve runs/demo --port 70000", "--port must be in"),
        (None, "serve runs/demo --max-body 0", "--max-body must be at least 1, got 0"),
        (None, "serve runs/demo --name a/b", "cannot stand in an address"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    command: Command, make: Callable[[], Any] | None, line: str, says: str
) -> None:
    if make:
        make()
    code, out, error = command(line)
    assert (code, out) == (2, "")
    assert says in error
    assert len(error.splitlines()) == 1
