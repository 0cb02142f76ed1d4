"""Checkpoints: the whole state, or the one before."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Slot
from perennial.server.cohort.exchange import Rejection
from perennial.server.psgd import Chains, Predictors
from perennial.server.run.checkpoint import (
    Checkpoint,
    DamagedError,
    check_same_config,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)
from perennial.server.run.state import RoundRecord, RunState


def vector(value: float) -> Any:
    return np.array([value, np.float32(1) / 3], np.float32)


def a_checkpoint(server_round: int = 7, *, pending: bool = True) -> Checkpoint:
    slot = Slot(server_round, 1, 0, 2)
    rejection = Rejection(2**63 + 5, (3, 4), "worker died", False)
    record = RoundRecord(
        slot,
        attempts=2,
        clients_asked=40,
        clients_answered=38,
        rejections=(rejection,),
        quarantined=(2**62,),
        bytes_down={"mixed": 5},
        bytes_up={"mixed": 6},
        train_losses={"mixed": 0.1},
        seconds=0.25,
    )
    shared = vector(server_round)
    state = RunState(
        slot,
        Chains(shared, (vector(2), shared)),
        (Predictors((vector(3), shared), (4, 3)), Predictors((shared, shared), (7, 7))),
        record if pending else None,
    )
    quarantine = {"after": 3, "rounds": 10, "strikes": {"1": 2}, "until": {"4": 9}}
    return Checkpoint(state, RunConfig().to_mapping(), (100, 120), quarantine, "2026-03-27T12:00:00+00:00")


def same(one: Checkpoint, other: Checkpoint) -> bool:
    """Compare bit for bit; arrays have no equality of their own."""

    def flat(saved: Checkpoint) -> Any:
        state = saved.state
        vectors = [state.chains.mixed, *state.chains.separate, *(m for p in state.predictors for m in p.models)]
        folded = [predictors.folded for predictors in state.predictors]
        rest = (state.slot, state.pending, saved.config, saved.positions, saved.quarantine, saved.started)
        return [array.tobytes() for array in vectors], folded, rest

    return bool(flat(one) == flat(other))


@pytest.mark.parametrize("pending", [False, True])
def test_a_checkpoint_round_trips_to_the_last_bit(tmp_path: Path, pending: bool) -> None:
    saved = a_checkpoint(pending=pending)
    save_checkpoint(tmp_path, saved)
    found = load_latest(tmp_path)
    assert found is not None
    assert same(found, saved)


def test_the_last_two_are_kept_and_the_newest_is_used(tmp_path: Path) -> None:
    for server_round in (8, 9, 10, 11):
        save_checkpoint(tmp_path, a_checkpoint(server_round))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "00000010.json", "00000010.safetensors", "00000011.json", "00000011.safetensors",
    ]  # fmt: skip
    found = load_latest(tmp_path)
    assert found is not None
    assert found.state.slot == Slot(11, 1, 0, 2)


def test_vectors_that_are_the_same_are_stored_once(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, a_checkpoint())
    assert (tmp_path / "00000007.safetensors").stat().st_size < 3 * 8 + 400


def test_a_folder_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "nowhere") is None


# A missing .json is no damage: it is what makes a checkpoint.
@pytest.mark.parametrize(
    ("suffix", "damage"),
    [(suffix, damage) for suffix in (".json", ".safetensors") for damage in ("truncated", "empty", "tampered")]
    + [(".safetensors", "missing")],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, suffix: str, damage: str
) -> None:
    before = a_checkpoint(8)
    for saved in (before, a_checkpoint(9)):
        save_checkpoint(tmp_path, saved)
    path = tmp_path / f"00000009{suffix}"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "tampered":
        path.write_bytes(content[:-30] + bytes([content[-30] ^ 1]) + content[-29:])
    else:
        path.write_bytes(content[: len(content) // 2 if damage == "truncated" else 0])
    monkeypatch.setattr(logging.getLogger("perennial"), "propagate", True)
    with caplog.at_level(logging.WARNING, "perennial"):
        found = load_latest(tmp_path)
    assert found is not None
    assert same(found, before)
    assert "is damaged" in caplog.text


def test_a_value_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, a_checkpoint())
    path = tmp_path / "00000007.json"
    outer = json.loads(path.read_text())
    outer["body"] = outer["body"].replace('"cycle": 1', '"cycle": 2')
    path.write_text(json.dumps(outer))
    with pytest.raises(DamagedError, match="its checksum differs"):
        load_checkpoint(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_any_damage_is_noticed_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    saved = a_checkpoint()
    save_checkpoint(tmp_path, saved)
    path = tmp_path / data.draw(st.sampled_from(["00000007.json", "00000007.safetensors"]))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))])
    try:
        found = load_checkpoint(tmp_path / "00000007.json")
    except DamagedError:
        return
    assert same(found, saved)


@pytest.mark.parametrize("content", ["[]", "{}", '{"sha256": 1, "body": 2}', "null", "[" * 100_000])
def test_json_that_is_no_checkpoint_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "00000001.json").write_text(content)
    with pytest.raises(DamagedError):
        load_checkpoint(tmp_path / "00000001.json")


def test_another_configuration_is_refused_by_its_first_difference() -> None:
    saved = RunConfig(lr_mixed=0.5).to_mapping()
    with pytest.raises(
        InputError, match=r"--resume: the checkpoint has lr-mixed = 0.5, this run 0.25; they must agree"
    ):
        check_same_config(saved, RunConfig(lr_mixed=0.25))


def test_what_only_says_how_to_run_may_differ() -> None:
    check_same_config(RunConfig().to_mapping(), RunConfig(round_timeout=5, node_timeout=5, output="elsewhere"))
