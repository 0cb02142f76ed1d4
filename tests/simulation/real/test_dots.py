"""The figures of the page on real data."""

from __future__ import annotations

from perennial.simulation.real import dots
from tests.simulation.paper.conftest import A_SERIES, a_series
from tests.simulation.real.test_gains import runs

__all__ = ["a_series"]


def test_figures_are_drawn_of_what_is_there(a_series: A_SERIES) -> None:
    assert dots.draw({"chicago": [], "flights": []}) == {}
    assert set(dots.draw({"chicago": runs(a_series, fedavg=(40, 41, 42)), "flights": []})) == {"ends", "curves"}
