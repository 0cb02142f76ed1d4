"""``python -m perennial.simulation.real`` as a user meets it, and the page that it fills."""

from __future__ import annotations

from pathlib import Path

import pytest

from perennial.common.command import console
from perennial.simulation.real.__main__ import main


def test_the_page_on_real_data_has_a_place_for_everything_that_is_written() -> None:
    text = (Path(__file__).parents[3] / "docs" / "real-data.md").read_text()
    of_each = [f"{data}{part}" for data in ("chicago", "flights") for part in ("", " sentence", " state", " movement")]
    for name in (*of_each, "ends", "curves"):
        assert f"<!-- begin {name} -->" in text
        assert f"<!-- end {name} -->" in text


def test_a_bad_path_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "log_to_console", lambda *, verbose: None)
    assert main(["--page", "missing.md", "--collect"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("real: missing.md cannot be read and written: No such file or directory; name a page")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
