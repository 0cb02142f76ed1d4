"""Folders and files that a user names."""

from __future__ import annotations

from pathlib import Path

import pytest

from perennial.common.command import places
from perennial.common.command.errors import InputError


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    for _ in range(2):
        assert places.folder(tmp_path / "a/b") == tmp_path / "a/b"
        assert list((tmp_path / "a/b").iterdir()) == []


def test_a_folder_that_takes_no_files_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path, reason in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file/inside", "cannot be written to: Not a directory"),
        # There already, so only a file tells that it takes none.
        (Path("/proc"), "cannot be written to: "),
        (Path("/proc/xx"), "cannot be written to: "),
    ):
        with pytest.raises(InputError) as error:
            places.folder(path)
        assert str(error.value).startswith(f"{path} {reason}")
        assert str(error.value).endswith("; name another folder")
        assert "\n" not in str(error.value)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_page_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("– page –\n", encoding="utf-8")
    assert places.page(tmp_path / "page.md") == "– page –\n"
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == "– page –\n"


def test_a_page_that_cannot_be_filled_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe")
    for name, reason in (
        ("missing.md", "No such file or directory"),
        ("", "Is a directory"),
        ("binary.md", "'utf-8' codec can't decode"),
    ):
        with pytest.raises(InputError) as error:
            places.page(tmp_path / name)
        assert str(error.value).startswith(f"{tmp_path / name} cannot be read and written: {reason}")
        assert str(error.value).endswith("; name a page that is there, with markers as docs/results.md has them")
