"""Runs can be told apart, and look the same wherever they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from matplotlib.colors import to_rgb

from perennial.server.report.drawing import Style
from perennial.server.report.styles import styles
from tests.server.report.records import THREE, rising


def test_strategies_keep_their_colours_whatever_they_are_beside() -> None:
    alone, among = styles([rising("mc-psgd")]), styles([rising(name) for name in [*THREE, "fedadam"]])
    assert alone["mc-psgd"] == among["mc-psgd"]
    assert len(set(among.values())) == 4


def test_twenty_runs_are_all_drawn_differently() -> None:
    look = styles([rising(f"run {i}", seed=i, data=f"set {i}") for i in range(20)])
    assert len(set(look.values())) == 20


def lightness(look: Mapping[str, Style]) -> list[float]:
    return [float(np.dot(to_rgb(style.color), (0.3, 0.6, 0.1))) for style in look.values()]


def test_one_number_that_differs_gives_ordered_shades() -> None:
    look = styles([rising(f"I={i}", strategy="mm-psgd", local_iterations=i) for i in (5, 10, 15, 20)])
    assert all(first < second for first, second in pairwise(lightness(look)))


def test_a_grid_has_a_colour_a_strategy_and_shades_within() -> None:
    runs = [rising(f"{name} {i}", strategy=name, local_iterations=i) for name in THREE for i in (5, 10, 20)]
    look = styles(runs)
    assert len(set(look.values())) == 9
    light = lightness(look)
    assert all(light[i] > light[i + 1] > light[i + 2] for i in (0, 3, 6))
