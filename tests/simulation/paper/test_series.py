"""What is kept of a run, and that it survives the way to disk and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perennial.simulation.paper import series
from tests.simulation.paper.conftest import A_SERIES


def test_a_series_keeps_the_evaluated_rounds_and_what_they_cost(a_series: A_SERIES) -> None:
    one = a_series(local_iterations=5)
    assert (one.run, one.seed, one.setting, one.planned, one.cycle_length) == ("mm-psgd", 0, "5", 8, 4)
    assert one.mean.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.6])
    assert one.accuracy[1].tolist() == [0.1, 0.3]
    assert one.megabytes.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert one.seconds.tolist() == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4]
    assert one.block.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert one.whole
    assert not a_series(means=(10, 20)).whole


def test_the_share_won_counts_the_rounds_since_the_evaluation_before(a_series: A_SERIES) -> None:
    one = a_series(means=(10, 20), chosen=("separate", "mixed"))
    assert one.separate.tolist() == [1, 0]
    assert np.isnan(a_series().separate).all()


def test_series_survive_the_way_to_disk(a_series: A_SERIES, tmp_path: Path) -> None:
    written = [
        a_series("a", seed=0, chosen=("mixed", "separate") * 4),
        a_series("a", seed=1, means=(12.34, 20)),
        a_series("b", strategy="fedavg", shuffled=True, participation=0.05),
    ]
    series.write(tmp_path, "figure9", written)
    assert (tmp_path / "figure9.csv").read_text().splitlines()[:2] == [
        "run,seed,round,cycle,block,mean,block-0,block-1,megabytes,seconds,separate",
        "a,0,1,0,0,10.00,0.00,20.00,1.0,0.5,0.000",
    ]
    found = series.read(tmp_path, "figure9")
    for before, after in zip(written, found, strict=True):
        for name, value in vars(before).items():
            if isinstance(value, np.ndarray):
                np.testing.assert_allclose(getattr(after, name), value, atol=1e-9)
            else:
                assert getattr(after, name) == value
    assert series.read(tmp_path, "figure8") == []


def test_until_ends_a_run_early(a_series: A_SERIES) -> None:
    one = a_series().until(5)
    assert one.rounds.tolist() == [1, 2, 3, 4, 5]
    assert one.accuracy.shape == (5, 2)
    assert one.whole
