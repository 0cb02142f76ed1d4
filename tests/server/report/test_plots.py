"""Figures are looked at by people; here is what a machine can hold them to."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from perennial.server.report import drawing, plots, reading
from perennial.server.report.styles import styles
from tests.server.report.records import THREE, record, rising


@pytest.mark.parametrize(
    ("names", "blocks"),
    [(["mc-psgd"], 1), (["mc-psgd"], 2), (THREE, 2), (THREE, 5), (THREE, 10), ([f"run {i}" for i in range(12)], 5)],
)
def test_every_figure_is_a_png_with_something_on_it(names: list[str], blocks: int) -> None:
    runs = [rising(name, blocks=blocks) for name in names]
    images = {name: drawing.png(figure, dpi=40) for name, figure in plots.draw(runs).items()}
    expected = ["accuracy", "accuracy-per-block", "chosen", "bytes", "train-loss"]
    assert list(images) == [name for name in expected if name != "chosen" or "mc-psgd" in names]
    for image in images.values():
        assert image.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(image) > 2000


def test_only_what_was_measured_is_drawn() -> None:
    unjudged = rising("fedavg", every=10_000)
    assert list(plots.draw([unjudged])) == ["train-loss"]
    assert plots.draw([reading.from_records("empty", {}, [])]) == {}
    assert list(plots.draw([unjudged, rising("mm-psgd")])) == ["accuracy", "accuracy-per-block", "bytes", "train-loss"]


def test_the_line_of_a_run_is_its_mean_accuracy_in_percent() -> None:
    run = rising("mm-psgd", every=4)
    (axes,) = plots.accuracy([run], styles([run])).axes
    (line,) = axes.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [4, 8, 12]
    assert np.asarray(line.get_ydata()).tolist() == (100 * run.evaluated.mean_accuracy).tolist()
    assert [text.get_text() for text in axes.texts][-1] == f"mm-psgd  {100 * run.evaluated.mean_accuracy[-1]:.1f} %"


def test_names_are_written_as_they_are() -> None:
    names = ["_first", "$\\frac$", "夜 5^2"]
    losses = {"train_loss_mixed": 1.0, "train_loss_separate": 2.0, "chosen": "mixed"}
    rounds = [record(at, 1, 3, accuracy=[0.5], **losses) for at in (1, 2, 3)]
    runs = [reading.from_records(name, {}, rounds, {"blocks": ["$^$"]}) for name in names]
    for figure in plots.draw(runs).values():
        assert len(drawing.png(figure, dpi=40)) > 2000
        for legend in figure.legends:
            assert len(legend.get_texts()) in (3, 2)


def test_chains_that_are_the_same_are_drawn_once() -> None:
    runs = [rising(name) for name in THREE]
    figure = plots.train_loss(runs, styles(runs))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["fedavg, mm-psgd, mc-psgd: mixed chain", "mc-psgd: separate chain"]


def test_drawing_changes_no_global_setting_and_repeats() -> None:
    before = dict(matplotlib.rcParams)
    first, second = (drawing.png(plots.draw([rising("mc-psgd")])["chosen"], dpi=40) for _ in range(2))
    assert first == second
    assert dict(matplotlib.rcParams) == before
