"""The control for label mixes: scores shift as Bayes' rule has it, and runs are read from their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.server.run.folder import RunFolder
from perennial.simulation.paper import mix
from perennial.simulation.paper.mix import Told
from tests.conftest import Simulate


def test_told_scores_are_the_probabilities_of_the_other_mix() -> None:
    """Likelihoods 0.2 and 0.4: by Bayes 1/3 at even odds, 3/5 where the first label is three times as frequent."""
    even, asked = np.array([0.5, 0.5]), np.array([0.75, 0.25])
    scores = np.log([[1 / 3, 2 / 3]])
    found = np.exp(mix.told(scores, even, asked))
    np.testing.assert_allclose(found / found.sum(), [[0.6, 0.4]])
    np.testing.assert_allclose(mix.told(scores, asked, asked), scores)


KEYS: dict[str, Any] = {"data": "digits", "blocks": 2, "labels-per-block": 5, "block-skew": 0.8, "clients": 4}
KEYS |= {"client-skew": 0.0, "cycles": 1, "rounds-per-block": 3, "batch-size": 8, "lr-mixed": 0.1, "lr-separate": 0.1}


def test_a_model_from_another_block_gains_by_being_told_and_a_predictor_has_nothing_to_learn(
    simulate: Simulate, tmp_path: Path
) -> None:
    paths = simulate("out", strategy=["fedavg", "mm-psgd"], **KEYS)
    fedavg, mm = mix.measure(tmp_path / "out")
    assert (fedavg.run, mm.run, fedavg.seed) == ("fedavg", "mm-psgd", 0)
    for one in (fedavg, mm):
        reported = json.loads(RunFolder(paths[one.run]).manifest.read_text())["scores"]
        assert one.plain == pytest.approx(100 * np.mean(reported))
    assert fedavg.told > fedavg.plain + 1
    assert mm.told == mm.plain


def test_runs_that_are_not_at_their_end_are_left_out(tmp_path: Path) -> None:
    assert mix.measure(tmp_path) == []


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    assert mix.read(tmp_path) == []
    mix.write(tmp_path, [Told("fedavg", 1, 50.125, 54.0)])
    assert mix.read(tmp_path) == [Told("fedavg", 1, pytest.approx(50.125, abs=0.006), 54.0)]
