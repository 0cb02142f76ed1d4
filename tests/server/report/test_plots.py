"""Figures are looked at by people; here is what a machine can hold them to."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
import pytest

from perennial.server.report import columns, drawing, plots, reading


def a_run(
    name: str, blocks: int = 2, cycles: int = 2, rounds: int = 3, every: int = 1, **changes: Any
) -> columns.RunResult:
    """A rising run; `changes` are settings of its configuration. Only mc-psgd chooses."""
    config: dict[str, object] = {"strategy": name, "blocks": blocks} | {
        k.replace("_", "-"): v for k, v in changes.items()
    }
    chooses = config["strategy"] == "mc-psgd"
    total = blocks * cycles * rounds
    records = []
    for index in range(total):
        record: dict[str, Any] = {
            "server-round": index + 1,
            "cycle": index // (blocks * rounds),
            "block": index // rounds % blocks,
            "round-in-block": index % rounds,
            "train-loss-mixed": 2.0 - index / total,
            "train-loss-separate": 1.9 - index / total if chooses else None,
            "chosen": ("mixed", "separate")[index % 2] if chooses else None,
            "bytes-down": 1000,
            "bytes-up": 1000,
            "seconds": 0.1,
        }
        if index % every == every - 1:
            record["accuracy"] = [0.1 + 0.5 * index / total + 0.01 * block for block in range(blocks)]
        records.append(record)
    return reading.from_records(name, config, records)


LOSSES = {"train-loss-mixed": 1.0, "train-loss-separate": 2.0, "chosen": "mixed"}
THREE = ["fedavg", "mm-psgd", "mc-psgd"]


@pytest.mark.parametrize(
    ("names", "blocks"),
    [(["mc-psgd"], 1), (["mc-psgd"], 2), (THREE, 2), (THREE, 5), (THREE, 10), ([f"run {i}" for i in range(12)], 5)],
)
def test_every_figure_is_a_png_with_something_on_it(names: list[str], blocks: int) -> None:
    runs = [a_run(name, blocks=blocks) for name in names]
    images = {name: drawing.png(figure, dpi=40) for name, figure in plots.draw(runs).items()}
    expected = ["accuracy", "accuracy-per-block", "chosen", "bytes", "train-loss"]
    assert list(images) == [name for name in expected if name != "chosen" or "mc-psgd" in names]
    for image in images.values():
        assert image.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(image) > 2000


def test_only_what_was_measured_is_drawn() -> None:
    unjudged = a_run("fedavg", every=10_000)
    assert list(plots.draw([unjudged])) == ["train-loss"]
    assert plots.draw([reading.from_records("empty", {}, [])]) == {}
    assert list(plots.draw([unjudged, a_run("mm-psgd")])) == ["accuracy", "accuracy-per-block", "bytes", "train-loss"]


def test_the_line_of_a_run_is_its_mean_accuracy_in_percent() -> None:
    run = a_run("mm-psgd", every=4)
    (axes,) = plots.accuracy([run], plots.styles([run])).axes
    (line,) = axes.get_lines()
    assert np.asarray(line.get_xdata()).tolist() == [4, 8, 12]
    assert np.asarray(line.get_ydata()).tolist() == (100 * run.mean_accuracy).tolist()
    assert [text.get_text() for text in axes.texts][-1] == f"mm-psgd  {100 * run.mean_accuracy[-1]:.1f} %"


def test_names_are_written_as_they_are() -> None:
    names = ["_first", "$\\frac$", "夜 5^2"]
    rounds = [
        {"server-round": i + 1, "cycle": 0, "block": 0, "round-in-block": i, "bytes-up": 1, "accuracy": [0.5], **LOSSES}
        for i in range(3)
    ]
    runs = [reading.from_records(name, {}, rounds, {"blocks": ["$^$"]}) for name in names]
    for figure in plots.draw(runs).values():
        assert len(drawing.png(figure, dpi=40)) > 2000
        for legend in figure.legends:
            assert len(legend.get_texts()) in (3, 2)


def bands(axes: Any) -> list[tuple[float, float]]:
    return [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in axes.patches]


def test_every_second_stay_is_tinted_and_in_a_panel_its_own_block() -> None:
    run = a_run("mm-psgd")
    look = plots.styles([run])
    assert bands(plots.accuracy([run], look).axes[0]) == [(0, 3), (6, 9)]
    assert bands(plots.accuracy_per_block([run], look).axes[1]) == [(3, 6), (9, 12)]


def test_many_stays_and_different_schedules_are_not_tinted() -> None:
    many, other = a_run("mm-psgd", cycles=31), a_run("fedavg", rounds=4)
    assert bands(plots.accuracy([many], plots.styles([many])).axes[0]) == []
    runs = [a_run("mm-psgd"), other]
    assert bands(plots.accuracy(runs, plots.styles(runs)).axes[0]) == []


def test_a_run_that_broke_off_still_shares_the_schedule() -> None:
    whole = a_run("mm-psgd")
    short = reading.from_records(
        "fedavg",
        {},
        [
            {"server-round": i + 1, "cycle": 0, "block": i // 3, "round-in-block": i % 3, "accuracy": [0.1, 0.2]}
            for i in range(4)
        ],
    )
    assert len(bands(plots.accuracy([whole, short], plots.styles([whole, short])).axes[0])) == 2


def test_chains_that_are_the_same_are_drawn_once() -> None:
    runs = [a_run(name) for name in THREE]
    figure = plots.train_loss(runs, plots.styles(runs))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["fedavg, mm-psgd, mc-psgd: mixed chain", "mc-psgd: separate chain"]


def test_strategies_keep_their_colours_whatever_they_are_beside() -> None:
    alone, among = plots.styles([a_run("mc-psgd")]), plots.styles([a_run(name) for name in [*THREE, "fedadam"]])
    assert alone["mc-psgd"] == among["mc-psgd"]
    assert len(set(among.values())) == 4


def test_twenty_runs_are_all_drawn_differently() -> None:
    look = plots.styles([a_run(f"run {i}", seed=i, data=f"set {i}") for i in range(20)])
    assert len(set(look.values())) == 20


def lightness(look: Mapping[str, drawing.Style]) -> list[float]:
    return [float(np.dot(matplotlib.colors.to_rgb(style.color), (0.3, 0.6, 0.1))) for style in look.values()]


def test_one_number_that_differs_gives_ordered_shades() -> None:
    look = plots.styles([a_run(f"I={i}", strategy="mm-psgd", local_iterations=i) for i in (5, 10, 15, 20)])
    assert all(first < second for first, second in pairwise(lightness(look)))


def test_a_grid_has_a_colour_a_strategy_and_shades_within() -> None:
    runs = [a_run(f"{name} {i}", strategy=name, local_iterations=i) for name in THREE for i in (5, 10, 20)]
    look = plots.styles(runs)
    assert len(set(look.values())) == 9
    light = lightness(look)
    assert all(light[i] > light[i + 1] > light[i + 2] for i in (0, 3, 6))


@pytest.mark.parametrize("heights", [[0.5], [0.5, 0.5, 0.5], [0.98, 0.97, 0.2], [0.1, 0.9, 0.11], [1.0] * 6])
def test_labels_are_moved_apart_in_order_and_stay_inside(heights: list[float]) -> None:
    placed = plots._apart(heights, 0.05)
    ordered = sorted(placed)
    assert all(second - first >= 0.05 - 1e-9 for first, second in pairwise(ordered))
    assert max(placed) <= 1.0
    assert np.argsort(placed, kind="stable").tolist() == np.argsort(heights, kind="stable").tolist()


def test_labels_that_have_room_stay_where_they_are() -> None:
    assert plots._apart([0.9, 0.1, 0.5], 0.05) == [0.9, 0.1, 0.5]


def test_drawing_changes_no_global_setting_and_repeats() -> None:
    before = dict(matplotlib.rcParams)
    first, second = (drawing.png(plots.draw([a_run("mc-psgd")])["chosen"], dpi=40) for _ in range(2))
    assert first == second
    assert dict(matplotlib.rcParams) == before
