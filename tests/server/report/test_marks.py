"""Bands behind the lines, and names beside them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from perennial.server.report import plots, reading
from perennial.server.report.marks import apart
from perennial.server.report.styles import styles
from tests.server.report.records import record, rising


def bands(axes: Any) -> list[tuple[float, float]]:
    return [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]


def test_every_second_stay_is_tinted_and_in_a_panel_its_own_block() -> None:
    run = rising("mm-psgd")
    look = styles([run])
    assert bands(plots.accuracy([run], look).axes[0]) == [(0, 3), (6, 9)]
    assert bands(plots.accuracy_per_block([run], look).axes[1]) == [(3, 6), (9, 12)]


def test_many_stays_and_different_schedules_are_not_tinted() -> None:
    many, other = rising("mm-psgd", cycles=31), rising("fedavg", rounds=4)
    assert bands(plots.accuracy([many], styles([many])).axes[0]) == []
    runs = [rising("mm-psgd"), other]
    assert bands(plots.accuracy(runs, styles(runs)).axes[0]) == []


def test_a_run_that_broke_off_still_shares_the_schedule() -> None:
    whole = rising("mm-psgd")
    short = reading.from_records("fedavg", {}, [record(at, 2, 3, accuracy=[0.1, 0.2]) for at in (1, 2, 3, 4)])
    assert len(bands(plots.accuracy([whole, short], styles([whole, short])).axes[0])) == 2


@pytest.mark.parametrize("heights", [[0.5], [0.5, 0.5, 0.5], [0.98, 0.97, 0.2], [0.1, 0.9, 0.11], [1.0] * 6])
def test_labels_are_moved_apart_in_order_and_stay_inside(heights: list[float]) -> None:
    placed = apart(heights, 0.05)
    ordered = sorted(placed)
    assert all(second - first >= 0.05 - 1e-9 for first, second in pairwise(ordered))
    assert max(placed) <= 1.0
    assert np.argsort(placed, kind="stable").tolist() == np.argsort(heights, kind="stable").tolist()


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert apart([0.9, 0.1, 0.5], 0.05) == [0.9, 0.1, 0.5]
