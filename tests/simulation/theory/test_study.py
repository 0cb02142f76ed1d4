"""Slopes on known power laws, and a study of a few hundred iterations from end to end."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from perennial.simulation.theory import __main__ as command
from perennial.simulation.theory.slopes import Slope, fit, mean_interval
from perennial.simulation.theory.study import DIVERSE, FULL, QUANTITIES, QUICK, SLOW, Study, Sweep, measure_all

TINY = Study(
    (SLOW, DIVERSE),
    (
        Sweep(variable="T", values=(128, 512), clients=2, blocks=2, cycles=2),
        Sweep(variable="N", values=(1, 4), iterations=256, blocks=2, cycles=2),
        Sweep(variable="M", values=(2, 4), iterations=256, clients=2, cycles=2),
    ),
    seeds=3,
)
SIZES = np.array([1.0, 2.0, 4.0, 8.0])


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.0, 0.5])
def test_a_power_law_has_its_exponent_and_no_spread(exponent: float) -> None:
    slope = fit(SIZES, np.outer([0.5, 1.0, 3.0], SIZES**exponent))
    assert slope is not None
    np.testing.assert_allclose([slope.value, slope.low, slope.high], exponent, atol=1e-12)


def test_the_interval_of_a_noisy_power_law_holds_its_exponent_and_narrows_with_seeds() -> None:
    noise = np.random.default_rng(0).lognormal(sigma=0.3, size=(160, 4))
    few, many = fit(SIZES, SIZES**-0.5 * noise[:10]), fit(SIZES, SIZES**-0.5 * noise)
    assert few is not None
    assert many is not None
    assert few.low < -0.5 < few.high
    assert many.high - many.low < 0.5 * (few.high - few.low)


def test_the_mean_is_taken_before_the_logarithm() -> None:
    slope = fit(np.array([1.0, 2.0]), np.array([[1.0, 1.9], [3.0, 0.1]]))
    assert slope is not None
    assert slope.value == pytest.approx(-1.0)


def test_an_excess_that_is_not_positive_has_no_slope() -> None:
    assert fit(SIZES, np.array([[1.0, 0.5, 0.1, -0.1]] * 3)) is None


def test_a_slope_that_hangs_on_single_seeds_is_none() -> None:
    assert fit(SIZES, np.array([[1.0, 1.0, 1.0, -1.0]] * 5 + [[1.0, 1.0, 1.0, 6.0]])) is None


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \(seeds, 4\)"):
        fit(SIZES, np.ones((3, 2)))


def test_the_interval_of_equal_seeds_is_their_value() -> None:
    assert mean_interval(np.full(5, 0.25)) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(
    ("low", "high", "said"), [(-1.0, -0.6, "below"), (-0.6, -0.4, "the bound's"), (-0.4, -0.1, "above")]
)
def test_a_slope_is_set_against_its_bound(low: float, high: float, said: str) -> None:
    assert Slope((low + high) / 2, low, high).against(-0.5).startswith(said)


@pytest.mark.parametrize("study", [FULL, QUICK])
def test_studies_take_at_least_ten_seeds_and_three_sizes(study: Study) -> None:
    assert study.seeds >= 10
    assert min(len(sweep.values) for sweep in study.sweeps) >= 3


def test_what_is_measured_keeps_to_the_theorems_bounds() -> None:
    for bench, settings in measure_all(TINY, lambda line: None):
        assert len(settings) == 6
        for setting in settings:
            excess = {key: values.mean() for key, values in setting.excess.items()}
            assert excess["mm"] <= excess["mm-path"] <= setting.leading
            assert 0.0 < excess["mc-own"] <= excess["mc-own-worst"]
            gain = bench.gain(setting.theorem_2.blocks).mean()
            assert gain >= 0.0
            assert excess["mc-own"] == pytest.approx(excess["mc"] + gain, abs=1e-12)


def test_the_command_writes_every_table_and_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "QUICK", TINY)
    assert command.main(["--output", str(tmp_path / "theory"), "--quick"]) == 0
    written = {path.name for path in (tmp_path / "theory").iterdir()}
    assert written == {"problems.csv", "excess.csv", "slopes.csv", "slow.png", "diverse.png"}
    with (tmp_path / "theory/slopes.csv").open(encoding="utf-8") as file:
        slopes = list(csv.DictReader(file))
    assert len(slopes) == 2 * 3 * len(QUANTITIES)
    table = capsys.readouterr().out
    assert table.count("\n| ") == 2 * len(QUANTITIES)
    first = slopes[0]
    assert f"{first['slope']} [{first['low']}, {first['high']}]".replace("-", "−") in table


def test_a_folder_that_takes_no_files_is_one_line_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure_all", lambda *_: pytest.fail("measured"))
    assert command.main(["--output", "/proc/xx"]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("theory: /proc/xx cannot be written to: ")
    assert (found.out, found.err.count("\n")) == ("", 1)


def test_ctrl_c_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure_all", interrupted)
    assert command.main(["--output", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "\ntheory: interrupted; the same command begins anew\n"
