"""Readers: which model of a round goes into which predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perennial.common.command.config import RunConfig
from perennial.common.cycle.schedule import Slot
from perennial.server.psgd import Chains, Predictors
from perennial.server.run.readers import Reader, reader_of

SLOT = Slot(2, 0, 1, 0)


def vector(value: float) -> Any:
    return np.array([value], np.float32)


CHAINS = Chains(vector(10), (vector(20), vector(21)))


def read(reader: Reader, chosen: str | None = None, times: int = 1) -> tuple[list[float], tuple[int, ...]]:
    predictors = Predictors.start(vector(0), 2)
    for _ in range(times):
        predictors = reader.read(predictors, SLOT, CHAINS, chosen)
    return [float(model[0]) for model in predictors.models], predictors.folded


def test_fedavg_gives_every_block_the_mixed_model() -> None:
    reader = reader_of(RunConfig(strategy="fedavg", averaging="mean"))
    assert reader.chains == ("mixed",)
    assert read(reader, times=2)[0] == [10, 10]


def test_the_mean_of_fedavg_is_one_model_for_every_block() -> None:
    reader = reader_of(RunConfig(strategy="fedavg-mean", decay=0.5))
    assert reader.chains == ("mixed",)
    assert read(reader)[0] == [10, 10]
    predictors = Predictors((vector(2), vector(2)), (1, 1))
    assert [float(one[0]) for one in reader.read(predictors, SLOT, CHAINS, None).models] == [6, 6]


def test_mm_psgd_folds_the_mixed_model_into_the_rounds_block() -> None:
    reader = reader_of(RunConfig(strategy="mm-psgd"))
    assert reader.chains == ("mixed",)
    assert read(reader, times=2) == ([0, 10], (0, 2))


@pytest.mark.parametrize(("chosen", "value"), [("mixed", 10), ("separate", 21)])
def test_mc_psgd_folds_the_chosen_model_into_the_rounds_block(chosen: str, value: float) -> None:
    reader = reader_of(RunConfig(strategy="mc-psgd"))
    assert reader.chains == ("mixed", "separate")
    assert read(reader, chosen) == ([0, value], (0, 1))


def test_averaging_decides_the_decay() -> None:
    assert reader_of(RunConfig(strategy="mm-psgd", averaging="mean", decay=0.3)).decay is None
    assert reader_of(RunConfig(strategy="mm-psgd", averaging="exponential", decay=0.3)).decay == 0.3
