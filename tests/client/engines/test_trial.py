"""Which engine a short trial takes, and how the choice is kept."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import perennial.client.engines as engines
from perennial.client.engines import kept_choice, trial
from perennial.client.engines.compiled import CompiledEngine
from perennial.client.engines.engine import Received, Trained, Work
from perennial.client.engines.loop import LoopEngine
from perennial.client.engines.trial import Load
from perennial.common.command.errors import InputError
from perennial.common.data.examples import Signature
from tests import layers
from tests.client.engines.test_layers import clients

LOAD = Load(tuple(clients("gelu", 0, 4)))
SIGNATURE = Signature.labelled(layers.IMAGE, layers.CLASSES)


def wrong(self: object, chains: list[Received], work: list[Work]) -> list[Trained]:
    found = LoopEngine(layers.network("gelu", 0)).train(chains, work)
    return [replace(one, params=one.params + np.float32(0.1)) for one in found]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "perennial"


@pytest.mark.parametrize("slow", ["stacked", "loop"])
def test_the_faster_engine_is_taken_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    clock = itertools.count()
    delays = {"stacked": 1, "loop": 1, slow: 5}
    now = [0.0]

    def timed(name: str, original: object) -> object:
        def train(self: object, chains: list[Received], work: list[Work]) -> list[Trained]:
            now[0] += delays[name] + 0.001 * next(clock)
            return original(self, chains, work)  # type: ignore[operator, no-any-return]

        return train

    for kind in (engines.StackedEngine, LoopEngine):
        monkeypatch.setattr(kind, "train", timed(kind.name, kind.train))
    monkeypatch.setattr(trial.time, "perf_counter", lambda: now[0])
    module = layers.network("gelu", 0)
    quick = "loop" if slow == "stacked" else "stacked"
    assert engines.choose("auto", module, SIGNATURE, load=LOAD).name == quick
    assert [path.read_text() for path in cache.glob("engine-*")] == [quick]
    delays[quick] = 50
    assert engines.choose("auto", module, SIGNATURE, load=LOAD).name == quick


def test_an_engine_that_is_wrong_is_not_taken_however_fast(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.StackedEngine, "train", wrong)
    module = layers.network("gelu", 0)
    assert engines.choose("auto", module, SIGNATURE, load=LOAD).name == "loop"
    with pytest.raises(InputError, match="ends elsewhere than engine loop"):
        engines.choose("stacked", module, SIGNATURE, load=LOAD)


def test_the_first_choice_that_is_kept_wins(tmp_path: Path) -> None:
    assert kept_choice.keep(tmp_path / "one", "stacked") == "stacked"
    assert kept_choice.keep(tmp_path / "one", "loop") == "stacked"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_network_that_cannot_take_a_step_is_one_line() -> None:
    load = Load(tuple(replace(one, steps=one.steps[:, :1]) for one in LOAD.work))
    module = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.BatchNorm1d(3))
    with pytest.raises(InputError, match=r"cannot be trained on batches of 1: .*more than 1 value per channel"):
        engines.choose("auto", module, SIGNATURE, load=load)


def test_what_cannot_be_compiled_goes_on_stacked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object) -> object:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(CompiledEngine, "_ready", broken)
    module = layers.network("gelu", 0)
    engine, received = CompiledEngine(module), trial.start(module)
    with caplog.at_level(logging.WARNING, logger="perennial"):
        (found,) = engine.train([received], LOAD.work)
    (expected,) = engines.StackedEngine(module).train([received], LOAD.work)
    assert np.array_equal(found.params, expected.params)
    assert [record.getMessage() for record in caplog.records] == [
        "torch.compile failed (RuntimeError: no compiler); going on with engine stacked"
    ]
