"""What the checker of a bad network takes for true: the plan of faults, and the replay of what was accepted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.chaos.accepted import replayed
from tests.chaos.fault_plan import DEVICES, KINDS, TUNNELLED, plan
from tests.conftest import Simulate, make_data, read_metrics, read_predictors, write_folder
from tests.reference import Setting, mc_psgd
from tests.simulation.test_agreement import largest_difference


def test_the_same_seed_brings_the_same_faults() -> None:
    assert plan(4, 70, 700) == plan(4, 70, 700) != plan(5, 70, 700)


def test_every_kind_of_fault_strikes_once_before_any_strikes_again() -> None:
    faults = plan(1, 2 * len(KINDS), 700)
    assert {fault.kind for fault in faults[: len(KINDS)]} == set(KINDS)
    assert all(one.after + one.rounds <= other.after for one, other in pairwise(faults))
    assert all(set(fault.devices) <= set(range(DEVICES)) for fault in faults)
    assert {fault.devices for fault in faults if "packets" in fault.kind} == {(TUNNELLED,)}


def test_a_replay_in_which_all_are_accepted_is_algorithm_2() -> None:
    data = make_data(2, 3)
    setting = Setting(0.3, 0.25, 2, 3, 2, "exponential", 0.5)
    expected = mc_psgd(data, 3, setting)
    rows = [
        {"block": number // 3 % 2, "accepted": [0, 1, 2], "chosen": chosen,
         "loss-mixed": float(chosen != "mixed"), "loss-separate": 0.5}
        for number, chosen in enumerate(expected.chosen)
    ]  # fmt: skip
    for found, model in zip(replayed(rows, data, 3, gamma=0.3, eta=0.25, steps=2), expected.predictors, strict=True):
        np.testing.assert_allclose(found, model, atol=1e-12, rtol=0)


def test_the_accepted_clients_of_a_run_explain_its_predictors(simulate: Simulate, tmp_path: Path) -> None:
    data = make_data(2, 6)
    folder = write_folder(tmp_path / "data", data)
    keys = {"model": "linear", "lr-mixed": 0.3, "lr-separate": 0.25, "cycles": 2, "rounds-per-block": 4}
    keys |= {"batch-size": 0, "local-iterations": 2, "participation": 0.5, "nodes": 3, "clients": 6}
    run = simulate(data=folder, **keys)[""]
    rows = read_metrics(run)
    assert {len(row["accepted"]) for row in rows} == {3}
    assert len({tuple(row["accepted"]) for row in rows}) > 2
    assert len(read_predictors(run)) == 2
    assert largest_difference(run, replayed(rows, data, 3, gamma=0.3, eta=0.25, steps=2)) < 1e-5
