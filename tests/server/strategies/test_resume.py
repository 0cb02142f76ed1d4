"""A run that is broken off and goes on from the state of any of its rounds ends as if it had not been."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg

from perennial import MCPSGD, MMPSGD, ClockSchedule, RoundSchedule, both_chains
from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import FakeClock
from perennial.example import example_app, example_arrays
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.keeping import keeper_of
from tests.server.strategies.players import Kept, Players, lr, model

SCHEDULE = RoundSchedule(["day", "night"], 3)


def bits(arrays: ArrayRecord) -> list[tuple[str, bytes]]:
    return [(name, array.numpy().tobytes()) for name, array in arrays.items()]


def plain(record: Any) -> dict[str, Any]:
    """Return a record without what no two runs share."""
    found = {name: getattr(record, name) for name in vars(record) if name not in ("seconds", "predictors")}
    return {**found, "predictors": {name: bits(one) for name, one in record.predictors.items()}}


def make(kind: str) -> BlockStrategy:
    private = DifferentialPrivacyServerSideFixedClipping(
        FedAdam(fraction_train=0.5, fraction_evaluate=0.5), 1.0, 0.2, 5
    )
    if kind == "mm":
        return MMPSGD(private, schedule=SCHEDULE)
    options: dict[str, Any] = {"schedule": SCHEDULE, "separate_config": lr(0.03), "one_message": kind == "one message"}
    return MCPSGD(private, **options)


def run(strategy: BlockStrategy, kept: Kept, rounds: int = 8) -> Any:
    return strategy.start(
        MemoryGrid(both_chains(example_app())), example_arrays(), rounds, train_config=lr(0.1), run_dir=kept,
        evaluate_config=ConfigRecord({"batch": b"\0\1", "sizes": [1, 2]}),
        evaluate_fn=lambda server_round, arrays: MetricRecord({"w": float(arrays["weight"].numpy()[0])}),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["mm", "mc", "one message"])
def test_from_the_state_of_every_round_a_run_ends_as_if_it_had_not_been_broken_off(kind: str) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the noise's generator
    kept = Kept()
    whole = run(make(kind), kept)
    assert [one.slot.server_round for one in kept.rounds] == list(range(1, 9))
    records = {one.slot.server_round: plain(one) for one in kept.rounds}
    for state in kept.states:
        random.seed(99)
        again = Kept(state)
        result = run(make(kind), again)
        assert bits(result.arrays) == bits(whole.arrays)
        assert {name: bits(one) for name, one in result.predictors.items()} == {
            name: bits(one) for name, one in whole.predictors.items()
        }
        for one in again.rounds:
            assert plain(one) == records[one.slot.server_round]
        # The initial model is evaluated once, by the first part.
        assert 0 not in result.evaluate_metrics_serverapp


def test_num_rounds_counts_those_before_a_resume() -> None:
    first, second, third = Kept(), Kept(), Kept()
    run(make("mc"), first, 3)
    second.state = first.states[-1]
    run(make("mc"), second, 5)
    assert [one.slot.server_round for one in second.rounds] == [4, 5]
    third.state = second.states[-1]
    result = run(make("mc"), third, 5)
    assert third.rounds == []
    assert sorted(result.predictors) == ["day", "night"]
    assert list(result.arrays) == ["weight", "bias"]


def test_a_round_that_waits_for_its_vote_is_judged_when_the_run_goes_on_for_no_more_rounds() -> None:
    kept = Kept()
    run(make("one message"), kept, 2)
    # After round 2 it waits; the vote at the end of the run is kept by itself.
    assert len(kept.states) == 3
    again = Kept(kept.states[1])
    run(make("one message"), again, 2)
    assert [one.slot.server_round for one in again.rounds] == [2]
    assert plain(again.rounds[0])["chosen"] == plain(kept.rounds[1])["chosen"]


def test_a_clock_goes_on_from_when_the_run_began() -> None:
    start = datetime(2026, 6, 1, 12, tzinfo=UTC)
    text = "day: 08:00-20:00, night: 20:00-08:00"

    def strategy(done: int) -> MCPSGD:
        clock = FakeClock(start, timedelta(hours=6), done)
        schedule = ClockSchedule(text, cycles=2, started=start if done == 0 else None, clock=clock)
        return MCPSGD(schedule=schedule, fraction_evaluate=0.0)

    kept = Kept()
    strategy(0).start(Players().grid(), model(0), run_dir=kept)
    assert len(kept.rounds) == 8
    again = Kept(kept.states[2])
    # One call of the clock is that of the schedule's construction.
    strategy(2).start(Players().grid(), model(0), run_dir=again)
    assert [(one.slot, one.block_name) for one in again.rounds] == [
        (one.slot, one.block_name) for one in kept.rounds[3:]
    ]


class Halving(FedAvg):
    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] /= 2
        return super().configure_train(server_round, arrays, config, grid)


def test_a_config_that_the_strategy_changed_goes_on_changed_unless_the_user_gives_another() -> None:
    def lrs(config: ConfigRecord, kept: Kept) -> list[float]:
        players = Players()
        MCPSGD(Halving(fraction_evaluate=0.0), schedule=SCHEDULE, separate_config=ConfigRecord({"k": 1})).start(
            players.grid(2), model(0), 5, train_config=config, run_dir=kept
        )
        return [one["lr"] for node, one, _ in players.of("train") if node == 0]

    kept = Kept()
    # Mixed and separate in turn; rounds 4 and 5 are of the second block, whose chain begins anew.
    whole = lrs(lr(16), kept)
    assert whole == [8, 8, 4, 4, 2, 2, 1, 8, 0.5, 4]
    assert lrs(lr(16), Kept(kept.states[2])) == whole[6:]
    assert lrs(lr(32), Kept(kept.states[2])) == [16, 16, 8, 8]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: MMPSGD(schedule=SCHEDULE), "another strategy: 'MCPSGD', not 'MMPSGD'"),
        (lambda: MCPSGD(schedule=RoundSchedule(["day", "dusk"], 3)), "another schedule"),
        (lambda: MCPSGD(schedule=RoundSchedule(["day", "night"], 2)), "another schedule"),
        (lambda: MCPSGD(schedule=SCHEDULE, decay=0.1), "another settings"),
        (lambda: MCPSGD(schedule=SCHEDULE, one_message=True), "another settings"),
        (lambda: MCPSGD(FedAdam(), schedule=SCHEDULE), "FedAvg.*FedAdam|FedAdam.*FedAvg"),
    ],
)
def test_the_state_of_another_run_is_refused_by_what_differs(other: Any, message: str) -> None:
    kept = Kept()
    MCPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 2, run_dir=kept)
    with pytest.raises(InputError, match=message):
        other().start(Players().grid(), model(0), 4, run_dir=Kept(kept.states[-1]))


def test_the_state_of_another_model_is_refused() -> None:
    kept = Kept()
    MCPSGD(schedule=SCHEDULE).start(Players().grid(), model(0), 2, run_dir=kept)
    wider = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    with pytest.raises(InputError, match=r"has another model: 'w' of shape \(\) in place of \(2,\)"):
        MCPSGD(schedule=SCHEDULE).start(Players().grid(), wider, 4, run_dir=Kept(kept.states[-1]))


def test_cycles_may_be_added_to_a_run_that_goes_on() -> None:
    kept = Kept()
    MMPSGD(schedule=RoundSchedule(2, 1, 2)).start(Players().grid(), model(0), run_dir=kept)
    again = Kept(kept.states[-1])
    MMPSGD(schedule=RoundSchedule(2, 1, 3)).start(Players().grid(), model(0), run_dir=again)
    assert [one.slot.server_round for one in again.rounds] == [5, 6]


def test_a_keeper_is_taken_in_the_place_of_a_folder() -> None:
    kept = Kept()
    assert keeper_of(kept) is kept
    assert keeper_of(None) is None
