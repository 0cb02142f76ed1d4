"""What is kept of a run, and that it survives the way to disk and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perennial.server.report.columns import Evaluated
from perennial.simulation.paper import series
from tests.simulation.paper.conftest import A_SERIES


def test_a_series_keeps_the_evaluated_rounds_and_what_they_cost(a_series: A_SERIES) -> None:
    one = a_series(local_iterations=5)
    assert (one.run, one.seed, one.setting, one.planned, one.last_round) == ("mm-psgd", 0, "5", 8, 8)
    assert one.evaluated.mean_accuracy.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5, 0.6])
    assert one.evaluated.bytes.tolist() == [1_000_000 * at for at in range(1, 9)]
    assert one.place.tolist() == [1, 2] * 4
    assert one.whole
    assert not a_series(means=(10, 20)).whole


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
        assert {**vars(after), "evaluated": before.evaluated} == vars(before)
        columns = dict(vars(before.evaluated))
        assert after.evaluated.scale == columns.pop("scale")
        for name, column in columns.items():
            np.testing.assert_allclose(getattr(after.evaluated, name), column, atol=1e-9, err_msg=name)
    assert series.read(tmp_path, "figure8") == []


def test_lines_further_apart_keep_how_many_votes_were_won(a_series: A_SERIES, tmp_path: Path) -> None:
    one = a_series("a", means=(10, 20, 30, 40, 50, 60), chosen=("separate", "mixed", "mixed") * 2)
    columns = {name: column for name, column in vars(one.evaluated).items() if name != "scale"}
    seldom = Evaluated(**{name: column[2::3] for name, column in columns.items()})
    seldom = replace(seldom, votes=np.array([3, 3]), won=np.array([1, 1]))
    series.write(tmp_path, "figure9", [replace(one, evaluated=seldom)])
    assert (tmp_path / "figure9.csv").read_text().splitlines()[1].endswith(",0.333")
    (found,) = series.read(tmp_path, "figure9")
    assert (found.evaluated.votes.tolist(), found.evaluated.won.tolist()) == ([3, 3], [1, 1])


def test_until_ends_a_run_early(a_series: A_SERIES) -> None:
    one = a_series().until(5)
    assert one.evaluated.server_round.tolist() == [1, 2, 3, 4, 5]
    assert one.whole


def test_what_is_kept_is_never_replaced_by_something_shorter(a_series: A_SERIES) -> None:
    whole, other, short = a_series(), a_series(seed=1), a_series(means=(90, 90))
    assert series.furthest([whole, other], [short]) == [whole, other]
    assert series.furthest([short], [whole]) == [whole]
    again = a_series(means=(70,) * 8)
    assert series.furthest([whole, other], [again]) == [again, other]
    longer = a_series(means=(70,) * 8, cycles=4)
    assert series.furthest([whole], [longer]) == [longer], "it was to go further, and is there in part"
