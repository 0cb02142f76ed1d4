"""Checkpoints of format 2: the whole state, or the one before; never another run's."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from perennial.common.command.errors import InputError, RunError
from perennial.server.run.checkpoint import Checkpoints, RunCheckpoint, load_checkpoint, new_identity
from perennial.server.run.metrics import Mark
from perennial.server.run.tree import DamagedError, first_difference, write

RUN = "5f0c"


def a_checkpoint(server_round: int, run: str = RUN) -> RunCheckpoint:
    shared = np.full(50, server_round, np.float32)
    tree = {"slot": [server_round, 0, 1], "chains": {"mixed": shared, "separate": [shared, np.arange(3)]}, "loss": 0.1}
    return RunCheckpoint(run, server_round, tree, (Mark(100 * server_round, 2**32 - 1), Mark()))


def same(one: RunCheckpoint | None, other: RunCheckpoint) -> bool:
    assert one is not None
    heads = [(each.run, each.server_round, each.metrics) for each in (one, other)]
    return heads[0] == heads[1] and first_difference(one.tree, other.tree) is None


def saved(folder: Path, *rounds: int) -> Checkpoints:
    checkpoints = Checkpoints(folder)
    for server_round in rounds:
        checkpoints.save(a_checkpoint(server_round))
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def spoil(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-30] + bytes([content[-30] ^ 1]) + content[-29:])


def test_a_checkpoint_round_trips_to_the_last_bit(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    assert same(Checkpoints(tmp_path).latest(RUN), a_checkpoint(7))


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).latest() is None
    assert Checkpoints(tmp_path / "nowhere").latest(RUN) is None


def test_the_last_two_are_kept_and_the_newest_is_used(tmp_path: Path) -> None:
    saved(tmp_path / "checkpoint", 8, 9, 10, 11)
    assert names(tmp_path / "checkpoint") == [
        "00000010.json", "00000010.safetensors", "00000011.json", "00000011.safetensors",
    ]  # fmt: skip
    assert same(Checkpoints(tmp_path / "checkpoint").latest(), a_checkpoint(11))


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "tampered", "missing", "of another round"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_is_named(
    tmp_path: Path, warned: pytest.LogCaptureFixture, suffix: str, damage: str
) -> None:
    saved(tmp_path, 8, 9)
    path = tmp_path / f"00000009{suffix}"
    if damage == "tampered":
        spoil(path)
    elif damage == "missing":
        path.unlink()
    elif damage == "of another round":
        path.write_bytes(path.with_name(f"00000008{suffix}").read_bytes())
    else:
        path.write_bytes(path.read_bytes()[: 40 if damage == "truncated" else 0])
    assert same(Checkpoints(tmp_path).latest(RUN), a_checkpoint(8))
    # A missing .json is no damage: it is what makes a checkpoint.
    assert ("00000009.json is damaged" in warned.text) == (damage != "missing" or suffix != ".json")


def test_a_checkpoint_under_the_name_of_another_round_is_damaged(tmp_path: Path) -> None:
    saved(tmp_path, 8)
    for suffix in (".json", ".safetensors"):
        (tmp_path / f"00000008{suffix}").rename(tmp_path / f"00000009{suffix}")
    with pytest.raises(DamagedError, match="it is of round 8"):
        load_checkpoint(tmp_path / "00000009.json")


def test_the_one_that_was_gone_on_from_is_kept_rather_than_a_newer_damaged_one(tmp_path: Path) -> None:
    saved(tmp_path, 8, 9)
    spoil(tmp_path / "00000009.json")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.latest(RUN)
    checkpoints.save(a_checkpoint(12))
    assert {name[:8] for name in names(tmp_path)} == {"00000008", "00000012"}


def test_if_none_is_whole_the_run_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    saved(tmp_path, 8, 9)
    for name in ("00000008.json", "00000009.json"):
        spoil(tmp_path / name)
    with pytest.raises(RunError, match="is whole; start anew, into another folder"):
        Checkpoints(tmp_path).latest(RUN)


def test_a_checkpoint_that_may_not_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 8, 9)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "00000009.json")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PermissionError):
        Checkpoints(tmp_path).latest(RUN)


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    saved(tmp_path, 8)
    with pytest.raises(InputError, match=r"00000008\.json is a checkpoint of run 5f0c, not of run a1b2; move it"):
        Checkpoints(tmp_path).latest("a1b2")


def test_a_checkpoint_of_another_run_among_a_run_s_own_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 8)
    Checkpoints(tmp_path / "other").save(a_checkpoint(20, run="a1b2"))
    for path in (tmp_path / "other").iterdir():
        path.rename(tmp_path / path.name)
    for run in (None, RUN, "a1b2"):
        with pytest.raises(InputError, match="is a checkpoint of run"):
            Checkpoints(tmp_path).latest(run)


def test_a_checkpoint_of_format_1_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """As version 1 wrote it: the body is a text of its own, with the checksum of its tensors in it."""
    tensors = save({"0": np.zeros(2, np.float32)})
    slot = {"server_round": 3, "cycle": 0, "block": 0, "round_in_block": 2}
    digest = hashlib.sha256(tensors).hexdigest()
    body = json.dumps({"format": 1, "slot": slot, "mixed": 0, "separate": [], "config": {}, "sha256": digest})
    outer = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}
    (tmp_path / "00000003.safetensors").write_bytes(tensors)
    (tmp_path / "00000003.json").write_text(json.dumps(outer))
    with pytest.raises(InputError, match="has format 1, not 2; go on with the version of Perennial that wrote it, or"):
        Checkpoints(tmp_path).latest()


@pytest.mark.parametrize(
    "head",
    [
        {}, {"run": ""}, {"run": 5}, {"server-round": -1}, {"server-round": True}, {"metrics": [[1]]},
        {"metrics": [[1.5, 2]]}, {"metrics": None},
    ],
)  # fmt: skip
def test_a_head_that_nobody_wrote_is_damage(tmp_path: Path, head: dict[str, Any]) -> None:
    content = {"run": RUN, "server-round": 1, "metrics": [], "state": None, **head} if head else {}
    text, blob = write(content)
    (tmp_path / "00000001.json").write_text(text)
    (tmp_path / "00000001.safetensors").write_bytes(blob)
    with pytest.raises(DamagedError):
        load_checkpoint(tmp_path / "00000001.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.data())
def test_any_damage_is_noticed_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    saved(tmp_path, 7)
    path = tmp_path / data.draw(st.sampled_from(["00000007.json", "00000007.safetensors"]))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))])
    try:
        found = load_checkpoint(tmp_path / "00000007.json")
    except DamagedError:
        return
    assert same(found, a_checkpoint(7))


def test_what_a_kill_left_half_written_is_cleaned_up_and_strangers_stay(tmp_path: Path) -> None:
    for name in (".00000007.json.99-ab.partial", "00000003.safetensors", "00000099.json", "notes.txt"):
        (tmp_path / name).write_text("left")
    saved(tmp_path, 7)
    assert names(tmp_path) == ["00000007.json", "00000007.safetensors", "notes.txt"]


@pytest.mark.parametrize("writes", range(1, 5))
def test_a_kill_between_any_two_steps_leaves_a_checkpoint_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """Stops before the n-th rename or removal of the save of round 9."""
    checkpoints = saved(tmp_path, 7, 8)
    steps = iter(range(1, 100))

    class Killed(BaseException):
        """No code cleans up after a kill, and none of it must be needed."""

    def counted(step: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            if next(steps) >= writes:
                raise Killed
            return step(*arguments, **options)

        return run

    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))
    with pytest.raises(Killed):
        checkpoints.save(a_checkpoint(9))
    monkeypatch.undo()
    found = Checkpoints(tmp_path).latest(RUN)
    assert same(found, a_checkpoint(9 if writes > 2 else 8))


def test_two_identities_are_never_the_same() -> None:
    assert len({new_identity() for _ in range(100)}) == 100


def test_the_json_file_is_json_with_the_identity_in_it(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    body = json.loads(json.loads((tmp_path / "00000007.json").read_text())["body"])
    assert body["format"] == 2
    assert body["tree"]["run"] == RUN
    assert body["tree"]["server-round"] == 7
    assert os.stat(tmp_path / "00000007.safetensors").st_size < 2 * 200 + 400
