"""A few of the damages of `python -m tests.chaos.damage`, and those that a table of trials named."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from perennial.common.command.errors import InputError
from perennial.server.run.lock import hold
from tests.chaos import damage
from tests.chaos.damage import Scene

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    return {scene.name: scene for scene in damage.scenes(tmp_path_factory.mktemp("scenes"))}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    for name in ("perennial", "flwr"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        caplog.set_level(logging.WARNING, name)
    return caplog


def test_twelve_damages_never_give_a_wrong_predictor_nor_a_traceback(made: dict[str, Scene], tmp_path: Path) -> None:
    tally = damage.damage(list(made.values()), tmp_path / "copy", times=12, seed=1)
    assert tally.findings == []
    assert sum(tally.outcomes.values()) == 12


@pytest.mark.parametrize("name", ["simulation-finished", "library-finished"])
def test_a_predictor_cut_to_100_bytes_is_named_and_repaired_by_resume(
    made: dict[str, Scene], tmp_path: Path, said: pytest.LogCaptureFixture, name: str
) -> None:
    folder = damage.copied(made[name], tmp_path / "copy")
    (path,) = [one for one in folder.rglob("block-1.safetensors") if one.parts[-3:-1] in RUNS]
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    made[name].resume(folder)
    assert path.read_bytes() == whole
    assert damage.models_of(folder) == made[name].right
    assert any(str(path) in message for message in said.messages)


RUNS = (("mc-psgd", "predictors"), ("run", "predictors"))


def test_a_checkpoint_of_another_run_with_the_same_settings_is_refused(made: dict[str, Scene], tmp_path: Path) -> None:
    folder = damage.copied(made["simulation-unfinished"], tmp_path / "copy")
    other = tmp_path / "other"
    other.mkdir()
    damage.copied(made["simulation-unfinished"], other)
    shutil.rmtree(other / "run")
    with pytest.raises(damage.BrokenOffError):
        damage.simulate(other, resume=False, orders=damage.BROKEN_OFF)
    (own,), (theirs,) = ([*one.rglob("checkpoint")] for one in (folder, other))
    shutil.rmtree(own)
    shutil.copytree(theirs, own)
    with pytest.raises(InputError, match=r"has rows of run [0-9a-f]{32}, and the checkpoint is of run"):
        damage.simulate(folder, resume=True)


def test_metrics_damaged_in_their_middle_are_named_by_resume_and_the_rest_is_used(
    made: dict[str, Scene], tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    folder = damage.copied(made["simulation-unfinished"], tmp_path / "copy")
    path = folder / "run" / "mm-psgd" / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"cycle", b"cyclo", 1)
    path.write_bytes(b"".join(lines))
    damage.simulate(folder, resume=True)
    assert f"{path} is damaged in line 3; the other rows are used" in said.messages
    assert damage.models_of(folder) == made["simulation-unfinished"].right
    assert len(path.read_bytes().splitlines()) == 8


def test_a_second_simulation_in_the_same_folder_says_who_holds_it(made: dict[str, Scene], tmp_path: Path) -> None:
    folder = damage.copied(made["simulation-unfinished"], tmp_path / "copy")
    with hold(folder / "run" / "mm-psgd"), pytest.raises(InputError, match=r"is held by process \d+ on .* since 2"):
        damage.simulate(folder, resume=True)
    # Its lock is still there, and no obstacle.
    assert (folder / "run" / "mm-psgd" / ".lock").exists()
    damage.simulate(folder, resume=True)
    assert damage.models_of(folder) == made["simulation-unfinished"].right
