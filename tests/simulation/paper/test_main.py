"""``python -m perennial.simulation.paper`` as a user meets it: bad paths in one line, Ctrl-C without traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perennial.common.command import console
from perennial.simulation.paper.__main__ import main


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "log_to_console", lambda *, verbose: None)
    Path("file").write_text("")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collect", "--output", "out", "--page", "missing.md"], "missing.md cannot be read and written: No such file"),
        (["collect", "--output", "/proc/xx"], "/proc/xx cannot be written to: "),
        (["collect", "--output", "file"], "file is a file; name another folder"),
        (["collect", "nowhere", "--output", "out"], "nowhere is no folder of runs"),
        (["run", "--quick", "--runs", "/proc/xx"], "/proc/xx cannot be written to: "),
        (["run", "--only", "figure6"], "--only takes figure2, "),
    ],
)
def test_a_bad_path_is_one_line_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith(f"paper: {message}")
    assert found.err.count("\n") == 1
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_ctrl_c_says_how_to_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("perennial.simulation.passes.run_experiment", interrupted)
    assert main(["run", "--quick", "--only", "figure3"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "paper: interrupted; the same command goes on"
