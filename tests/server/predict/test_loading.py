"""The predictor of a time or of a block: found, checked and loaded, or one line that says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perennial.common.command.errors import InputError
from perennial.server.predict import loading
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.publishing import ModelSpec, publish, settle
from perennial.server.predict.versions import path_of, sealed
from tests.server.predict.published import BY_ROUNDS, arrays, is_whole, publication

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with versions 1 to 3."""
    for n in (1, 2, 3):
        publish(tmp_path, publication(n))
    return tmp_path


def spoil(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("at", "block"),
    [
        (datetime(2026, 1, 5, 12, tzinfo=BERLIN), "day"),
        (datetime(2026, 1, 5, 7, 59, 59, tzinfo=BERLIN), "night"),
        (datetime(2026, 1, 5, 8, tzinfo=BERLIN), "day"),
        (datetime(2026, 1, 5, 7, 30, tzinfo=UTC), "day"),
        (datetime(2026, 7, 5, 18, 30, tzinfo=UTC), "night"),
        (datetime(2026, 1, 5, 12, tzinfo=timezone(timedelta(hours=-8))), "night"),
    ],
)
def test_a_time_says_which_block_it_is(run: Path, at: datetime, block: str) -> None:
    found = load_predictor(run, at=at)
    assert found.block == block
    assert is_whole(found)


def test_without_time_and_block_it_is_the_block_of_now(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hour, block in ((3, "night"), (13, "day")):
        now = datetime(2026, 1, 5, hour, tzinfo=BERLIN)
        monkeypatch.setattr(loading, "utc_now", lambda now=now: now)
        assert load_predictor(str(run)).block == block


@pytest.mark.parametrize(("block", "name"), [("night", "night"), (1, "night"), (0, "day")])
def test_a_block_is_taken_by_name_or_number(run: Path, block: Any, name: str) -> None:
    found = load_predictor(run, block=block)
    assert (found.block, found.version) == (name, 3)
    assert is_whole(found)


def test_a_version_is_taken_by_its_number(run: Path) -> None:
    found = load_predictor(run, block="day", version=2)
    assert found.version == 2
    assert found.arrays["count"] == 2


def test_a_run_that_has_ended_is_read_also_without_its_versions(run: Path) -> None:
    settle(run)
    for path in sorted((run / "versions").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    for version in (None, 3):
        found = load_predictor(run, block="night", version=version)
        assert found.version == 3
        assert is_whole(found)
    with pytest.raises(InputError, match="has no version 2; it has 3"):
        load_predictor(run, block="night", version=2)


def test_a_version_that_is_being_written_or_removed_is_not_seen(run: Path) -> None:
    path_of(run, 3).rename(run / "versions" / ".3.7-ab.partial")
    assert load_predictor(run, block="day").version == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"at": datetime(2026, 1, 5, 12)}, "at must be a time with a zone, got datetime"),
        ({"at": "2026-01-05"}, "at must be a time with a zone, got '2026-01-05'"),
        ({"at": datetime(2026, 1, 5, tzinfo=UTC), "block": "day"}, "give at or block, not both"),
        ({"block": "dusk"}, "there is no block 'dusk'; the blocks are: day, night"),
        ({"block": 2}, "there is no block 2; the blocks are: day, night"),
        ({"block": -1}, "there is no block -1"),
        ({"block": True}, "there is no block True"),
        ({"block": "day", "version": 9}, "has no version 9; it has 1, 2, 3"),
        ({"block": "day", "version": "../3"}, r"has no version '\.\./3'; it has 1, 2, 3"),
    ],
)
def test_bad_arguments_are_one_clear_error(run: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_predictor(run, **options)


def test_a_run_by_rounds_has_no_clock_and_the_error_names_the_blocks(tmp_path: Path) -> None:
    publish(tmp_path, publication(1, schedule=BY_ROUNDS))
    for at in (None, datetime(2026, 1, 5, tzinfo=UTC)):
        with pytest.raises(InputError, match="counts rounds and has no clock; give block, one of: day, night"):
            load_predictor(tmp_path, at=at)
    assert is_whole(load_predictor(tmp_path, block="night"))


def test_a_block_that_is_not_trained_yet_is_named(tmp_path: Path) -> None:
    publish(tmp_path, publication(1, predictors=(arrays(1, 0), None), folded=(1, 0)))
    with pytest.raises(InputError, match="block night is not trained yet in version 1; trained are: day"):
        load_predictor(tmp_path, block="night")


def test_a_folder_without_predictors_says_so(tmp_path: Path) -> None:
    for version in (None, 1):
        with pytest.raises(InputError, match="has no published predictors; has the run published any yet"):
            load_predictor(tmp_path, block="day", version=version)


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    publish(tmp_path / "mm-psgd", publication(1))
    publish(tmp_path / "mc-psgd", publication(1))
    with pytest.raises(InputError, match="name one of them: mc-psgd, mm-psgd"):
        load_predictor(tmp_path, block="day")


def test_a_path_that_is_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is no folder; name a run's folder"):
        load_predictor(tmp_path / "file")
    with pytest.raises(InputError, match="nowhere does not exist; name a run's folder"):
        load_predictor(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["block-0.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["tampered", "truncated", "missing"])
def test_a_damaged_version_is_named_and_the_one_before_is_used(
    run: Path, warned: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    path = path_of(run, 3) / name
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.write_bytes(path.read_bytes().replace(b"2", b"3", 1))
    found = load_predictor(run, block="day")
    assert found.version == 2
    assert is_whole(found)
    assert str(path) in warned.text
    with pytest.raises(InputError, match=r"choose another version, or publish it again"):
        load_predictor(run, block="day", version=3)


def test_if_no_version_is_whole_the_newest_damage_is_the_error(tmp_path: Path) -> None:
    publish(tmp_path, publication(1))
    settle(tmp_path)
    for path in (path_of(tmp_path, 1), tmp_path / "predictors"):
        spoil(path / "block-0.safetensors")
    with pytest.raises(
        InputError, match=r"versions/1/block-0\.safetensors: its checksum is not .*: publish it again, or"
    ):
        load_predictor(tmp_path, block="day")
    assert is_whole(load_predictor(tmp_path, block="night"))


def test_another_clock_in_the_manifest_is_noticed(run: Path, warned: pytest.LogCaptureFixture) -> None:
    path = path_of(run, 3) / "manifest.json"
    path.write_text(path.read_text().replace("08:00-20:00", "09:00-20:00"))
    assert load_predictor(run, block="day").version == 2
    assert "manifest.json: its checksum differs" in warned.text


def test_a_manifest_of_an_older_format_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "predictors").mkdir()
    (tmp_path / "predictors" / "manifest.json").write_text(json.dumps({"format": 1, "blocks": ["0"]}))
    for version in (None, 1):
        with pytest.raises(InputError, match="format must be 2, got 1; publish it again with this version"):
            load_predictor(tmp_path, block=0, version=version)


@pytest.mark.parametrize(
    "manifest",
    [{"format": 2}, {"format": 2, "blocks": ["day"], "sha256": 5, "schedule": []}, {"format": 2, "blocks": 7}],
)
def test_a_manifest_that_nobody_wrote_is_damage(tmp_path: Path, manifest: dict[str, Any]) -> None:
    path_of(tmp_path, 1).mkdir(parents=True)
    (path_of(tmp_path, 1) / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(InputError, match="is no version"):
        load_predictor(tmp_path, block=0)


@pytest.mark.parametrize("content", ["", "[]", "5", "{", '{"a": 1}', "[" * 100_000, '{"format": 2}'])
def test_json_that_is_no_manifest_is_one_clear_error(tmp_path: Path, content: str) -> None:
    path_of(tmp_path, 1).mkdir(parents=True)
    (path_of(tmp_path, 1) / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        load_predictor(tmp_path, block=0)


def test_a_file_that_may_not_be_read_is_not_taken_for_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(InputError, match=r"versions/3/manifest\.json cannot be read: Permission denied"):
        load_predictor(run, block="day")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_any_damage_to_a_version_gives_the_right_predictor_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "versions").exists():
        publish(tmp_path, publication(5))
    version = path_of(tmp_path, 1)
    name = data.draw(st.sampled_from(["manifest.json", "block-0.safetensors"]))
    content = bytearray((version / name).read_bytes())
    whole = bytes(content)
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (version / name).write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
    try:
        found = load_predictor(tmp_path, at=datetime(2026, 1, 5, 12, tzinfo=BERLIN))
    except InputError:
        return
    finally:
        (version / name).write_bytes(whole)
    assert found.block == "day"
    assert is_whole(found)


def test_a_module_has_the_predictor_s_arrays(tmp_path: Path) -> None:
    import torch

    model = {"fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "fc.bias": np.array([1, 2], np.float32)}
    publish(tmp_path, publication(1, predictors=(model, model), model=ModelSpec("linear", (3,), 2)))
    network = load_predictor(tmp_path, block="day").module()
    x = torch.tensor([[1.0, 2.0, 3.0]])
    with torch.no_grad():
        assert network(x).tolist() == (x.numpy() @ model["fc.weight"].T + model["fc.bias"]).tolist()
    assert not network.training


def test_a_run_that_names_no_model_has_no_module(run: Path) -> None:
    with pytest.raises(InputError, match="the run names no model that could be built; use the predictor's arrays"):
        load_predictor(run, block="day").module()


def test_a_model_that_is_not_the_trained_one_is_named(tmp_path: Path) -> None:
    publish(tmp_path, publication(1, model=ModelSpec("linear", (3,), 2)))
    with pytest.raises(InputError, match="model 'linear' is not the one that was trained: "):
        load_predictor(tmp_path, block="day").module()


def test_loading_imports_neither_torch_nor_flower_nor_pickle_unless_a_module_is_asked_for(run: Path) -> None:
    code = (
        "import sys; from perennial.server.predict.loading import load_predictor; "
        f"load_predictor({str(run)!r}); print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in found.stdout.split()}.isdisjoint({"torch", "flwr", "ray"})
