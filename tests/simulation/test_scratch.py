"""The temporary folder of a simulation, whose name has to leave room for Ray's sockets."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from perennial.simulation.scratch import scratch_folder

# Of Ray's own: /session_2026-11-18_20-00-00_123456_1234567/sockets/plasma_store
RAYS = 64


def test_a_long_tmpdir_is_left_for_a_shorter_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = tmp_path / ("t" * 100)
    usual.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(usual))
    with scratch_folder() as folder:
        assert len(str(folder)) + RAYS <= 107
        assert folder.is_dir()
        # Somebody else's start must find its own here, and leave this one alone.
        with scratch_folder() as other:
            assert other.parent == folder.parent
            assert folder.is_dir()
    assert not folder.exists()
    assert list(usual.iterdir()) == []


def test_a_short_tmpdir_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="t") as usual:
        monkeypatch.setattr(tempfile, "tempdir", usual)
        with scratch_folder() as folder:
            assert folder.parent == Path(usual)
