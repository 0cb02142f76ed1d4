"""The strategies of the project's own app, on nodes whose every answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import RunError
from perennial.common.cycle.schedule import RoundSchedule, Slot
from perennial.common.wire.orders import Order
from perennial.common.wire.updates import Losses, Update, write_update
from perennial.server.cohort.roster import Roster
from perennial.server.run.pass_rows import row_of, train_losses
from perennial.server.strategies.mc_psgd import MCPSGD
from perennial.server.strategies.mm_psgd import MMPSGD
from perennial.server.strategies.own import ways
from perennial.server.strategies.own.ways import assemble
from tests.server.conftest import LAYOUT, MODEL_BYTES, FakeGrid, Outcome, Sent, model, value

RunStrategy = Callable[..., Outcome]
FOUR = {11: (0,), 12: (1,), 13: (2,), 14: (3,)}


def a_grid(**options: Any) -> FakeGrid:
    return FakeGrid(dict(FOUR), **options)


def fails(nodes: set[int], server_round: int, times: int = 1) -> Callable[[Sent, RecordDict], Any]:
    """Return a sabotage: these nodes answer with an error in the first ``times`` attempts of a round."""
    seen: dict[int, int] = {}

    def sabotage(sent: Sent, content: RecordDict) -> RecordDict | Error:
        if sent.order.server_round != server_round or sent.node not in nodes:
            return content
        seen[sent.node] = seen.get(sent.node, 0) + 1
        return Error(2, "Traceback\nValueError: no data") if seen[sent.node] <= times else content

    return sabotage


# --- What is computed -------------------------------------------------------------------------------------------------


def test_fedavg_ends_with_the_mixed_chain_in_every_block(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedavg")
    assert isinstance(outcome.strategy, MMPSGD)
    assert outcome.predictors == [8, 8]


def test_the_mean_of_fedavg_is_one_model_for_every_block(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="fedavg-mean")
    assert outcome.predictors == [(1 + 2 + 3 + 4 + 5 + 6 + 7 + 8) / 8] * 2
    assert outcome.folded == (8, 8)


def test_mm_psgd_averages_each_blocks_rounds_over_all_cycles(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="mm-psgd")
    assert isinstance(outcome.strategy, MMPSGD)
    assert outcome.predictors == [(1 + 2 + 5 + 6) / 4, (3 + 4 + 7 + 8) / 4]
    assert outcome.folded == (4, 4)


def test_mm_psgd_with_decay_halves_the_old_predictor(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(), strategy="mm-psgd", averaging="exponential", decay=0.5)
    assert outcome.predictors == [(((1 + 2) / 2 + 5) / 2 + 6) / 2, (((3 + 4) / 2 + 7) / 2 + 8) / 2]


def test_mc_psgd_folds_the_chain_with_the_smaller_loss(run_strategy: RunStrategy) -> None:
    """The separate chain is 10, 20, 30, 40 in its block's rounds; it wins in block 0 and loses in block 1."""
    outcome = run_strategy(a_grid(losses=lambda order, models: (1.0, 0.5 if order.block == 0 else 1.5)))
    assert isinstance(outcome.strategy, MCPSGD)
    assert outcome.predictors == [(10 + 20 + 30 + 40) / 4, (3 + 4 + 7 + 8) / 4]
    assert [record.chosen for record in outcome.watcher.records] == ["separate", "separate", "mixed", "mixed"] * 2
    assert outcome.folded == (4, 4)


def test_mc_psgd_judges_the_models_that_the_round_produced(run_strategy: RunStrategy) -> None:
    """A loss that tells which models it was taken of: round t must be judged by x_t and y_t."""
    outcome = run_strategy(a_grid(losses=lambda order, models: (models["mixed"], models["separate"])))
    judged = [(record.losses["mixed"], record.losses["separate"]) for record in outcome.watcher.records]
    assert judged == [(1, 10), (2, 20), (3, 10), (4, 20), (5, 30), (6, 40), (7, 30), (8, 40)]
    assert [record.slot.server_round for record in outcome.watcher.records] == list(range(1, 9))


def test_the_mixed_chain_is_the_same_in_all_strategies(run_strategy: RunStrategy) -> None:
    heads = []
    for strategy in ("fedavg", "mm-psgd", "mc-psgd"):
        outcome = run_strategy(a_grid(), strategy=strategy)
        chains = [state["strategy"]["mixed"]["arrays"]["arrays"]["w"] for state in outcome.watcher.states]
        # The state after a vote has the chain of the state before it.
        heads.append([np.asarray(chain).tobytes() for chain in chains])
    assert heads[0] == heads[1] == list(dict.fromkeys(heads[2]))
    assert len(heads[0]) == 8


def test_the_first_round_of_a_block_sends_that_blocks_separate_model(run_strategy: RunStrategy) -> None:
    grid = a_grid()
    run_strategy(grid)
    trained = [sent.models for sent in grid.sent if sent.node == 11 and sent.message_type == MessageType.TRAIN]
    assert [models["separate"] for models in trained] == [0, 10, 0, 10, 20, 30, 20, 30]
    assert [models["mixed"] for models in trained] == [0, 1, 2, 3, 4, 5, 6, 7]


def a_training(*strategies: str, **keys: Any) -> ways.Training:
    configs = [RunConfig(strategy=name, **keys) for name in strategies]
    return assemble(configs, schedule_of(configs[0]), LAYOUT, Roster(configs[0], 5))


def test_one_pass_trains_what_all_its_readers_need() -> None:
    for strategies, kind in [
        (("fedavg",), MMPSGD),
        (("mm-psgd", "fedavg"), MMPSGD),
        (("block-separate",), MMPSGD),
        (("block-separate", "mm-psgd"), MCPSGD),
        (("mc-psgd", "mm-psgd", "fedavg"), MCPSGD),
    ]:
        training = a_training(*strategies)
        assert type(training.strategy) is kind
        assert len(training.readers) == len(strategies)


@pytest.mark.parametrize("averaging", ["mean", "exponential"])
def test_a_pass_gives_each_run_the_predictors_that_it_has_alone(run_strategy: RunStrategy, averaging: str) -> None:
    def losses(order: Order, models: dict[str, float]) -> tuple[float, float]:
        return 1.0, 0.5 if order.block == 0 else 1.5

    names = ("mc-psgd", "block-separate", "mm-psgd", "fedavg")
    alone = {name: run_strategy(a_grid(losses=losses), strategy=name, averaging=averaging) for name in names}
    together = run_strategy(a_grid(losses=losses), also=names[1:], strategy="mc-psgd", averaging=averaging)
    for name, reader in zip(names, together.watcher.training.readers, strict=True):
        assert [value(one) for one in reader.models] == alone[name].predictors
        assert reader.counts == alone[name].folded
    assert len({str(outcome.predictors) for outcome in alone.values()}) == 4


def test_block_separate_trains_the_separate_chain_alone_and_pays_for_nothing_else(run_strategy: RunStrategy) -> None:
    grid = a_grid()
    outcome = run_strategy(grid, strategy="block-separate")
    assert outcome.predictors == [(10 + 20 + 30 + 40) / 4] * 2
    assert {tuple(sent.models) for sent in grid.sent} == {("separate",)}
    assert grid.exchanges == ["query"] + ["train"] * 8
    for row in outcome.rows:
        assert (row["bytes-down"], row["bytes-up"]) == (4 * MODEL_BYTES, 4 * MODEL_BYTES)
        assert (row["train-loss-mixed"], row["train-loss-separate"], row["chosen"]) == (None, 0.5, None)


@pytest.mark.parametrize("names", [("fedavg", "mm-psgd", "new-psgd"), ("fedavg",)])
def test_a_strategy_that_was_forgotten_in_the_table_or_the_configuration_is_named(names: tuple[str, ...]) -> None:
    with pytest.raises(RuntimeError, match=r"strategy '[a-z-]+' is not in .*; every strategy must be in both"):
        ways.check_complete(names)


# --- What it costs ----------------------------------------------------------------------------------------------------


def test_fedavg_and_mm_psgd_take_one_exchange_a_round(run_strategy: RunStrategy) -> None:
    for strategy in ("fedavg", "mm-psgd"):
        grid = a_grid()
        outcome = run_strategy(grid, strategy=strategy)
        assert grid.exchanges == ["query"] + ["train"] * 8
        for row in outcome.rows:
            assert (row["bytes-down"], row["bytes-up"]) == (4 * MODEL_BYTES, 4 * MODEL_BYTES)


def test_mc_psgd_takes_a_loss_order_only_where_a_block_or_the_run_ends(run_strategy: RunStrategy) -> None:
    grid = a_grid()
    run_strategy(grid)
    assert grid.exchanges == ["query", *["train", "train", "evaluate"] * 4]
    assert [sent.order.report_loss for sent in grid.sent if sent.node == 11 and sent.message_type == "train"] == [
        False, True, False, True, False, True, False, True,
    ]  # fmt: skip


def test_mc_psgd_with_one_block_takes_a_single_loss_order(run_strategy: RunStrategy) -> None:
    grid = FakeGrid(dict(FOUR), blocks=1)
    outcome = run_strategy(grid, blocks=1)
    assert grid.exchanges == ["query", "train", "train", "train", "train", "evaluate"]
    assert outcome.folded == (4,)


def test_mc_psgd_sends_two_models_down_and_two_up_and_two_down_for_a_vote(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid())
    rows = outcome.rows
    two = 2 * 4 * MODEL_BYTES
    assert [row["bytes-down"] for row in rows] == [two, 2 * two] * 4
    assert [row["bytes-up"] for row in rows] == [two] * 8


def test_a_reader_of_the_mixed_chain_is_not_billed_for_the_vote(run_strategy: RunStrategy) -> None:
    rows = [row_of(record, ways.WAYS["mm-psgd"], None) for record in run_strategy(a_grid()).watcher.records]
    assert {(row["bytes-down"], row["bytes-up"]) for row in rows} == {(4 * MODEL_BYTES, 4 * MODEL_BYTES)}
    assert {row["chosen"] for row in rows} == {None}


# --- Replies that fail ------------------------------------------------------------------------------------------------


def test_a_round_with_a_quorum_goes_on_with_those_who_answered(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(a_grid(sabotage=fails({11, 12}, 3)), strategy="mm-psgd", min_replies=0.5)
    row = outcome.rows[2]
    assert (row["attempts"], row["clients-asked"], row["clients-answered"], row["clients-rejected"]) == (1, 4, 2, 2)
    assert [(r["clients"], r["reason"]) for r in row["rejections"]] == [
        ([0], "node error 2: ValueError: no data"),
        ([1], "node error 2: ValueError: no data"),
    ]
    assert row["bytes-up"] == 2 * MODEL_BYTES
    assert outcome.predictors == [3.5, 5.5]


def test_a_round_without_quorum_is_repeated_and_folded_once(run_strategy: RunStrategy) -> None:
    grid = a_grid(sabotage=fails({11, 12, 13}, 3, times=2))
    outcome = run_strategy(grid, strategy="mm-psgd")
    row = outcome.rows[2]
    assert (row["attempts"], row["clients-asked"], row["clients-answered"], row["clients-rejected"]) == (3, 12, 6, 6)
    # A round may be attempted for days: of each node the last rejection is kept.
    assert len(row["rejections"]) == 3
    # A node that failed is asked again who it is.
    assert sorted(grid.queries[4:]) == [11, 11, 12, 12, 13, 13]
    assert [record.slot.server_round for record in outcome.watcher.records] == list(range(1, 9))
    assert outcome.predictors == [3.5, 5.5]
    assert outcome.folded == (4, 4)


def test_a_vote_without_quorum_is_repeated_and_folded_once(run_strategy: RunStrategy) -> None:
    seen = []

    def sabotage(sent: Sent, content: RecordDict) -> RecordDict | None:
        seen.append(sent) if sent.message_type == "evaluate" else None
        return None if sent.message_type == "evaluate" and len(seen) <= 3 else content

    grid = a_grid(sabotage=sabotage)
    outcome = run_strategy(grid)
    assert grid.exchanges[:5] == ["query", "train", "train", "evaluate", "evaluate"]
    assert outcome.folded == (4, 4)
    assert outcome.rows[1]["clients-rejected"] == 3
    assert outcome.watcher.records[1].attempts == 1


def test_a_run_ends_after_round_attempts_with_count_and_remedy(run_strategy: RunStrategy) -> None:
    grid = a_grid(sabotage=fails({11, 12, 13}, 2, times=99))
    told = r"round 2, block 0: 1 of 4 clients answered \(node error 2: .*3 times.*min-replies 0.5"
    with pytest.raises(RunError, match=told):
        run_strategy(grid, strategy="mm-psgd", round_attempts=3)
    assert [sent.order.server_round for sent in grid.sent if sent.node == 11] == [1, 2, 2, 2]


def test_a_silent_node_is_rejected_as_late(run_strategy: RunStrategy) -> None:
    outcome = run_strategy(
        a_grid(sabotage=lambda sent, content: None if sent.node == 13 else content), strategy="fedavg"
    )
    assert {r.reason for record in outcome.watcher.records for r in record.account.rejections} == {"no reply in time"}
    assert outcome.predictors == [8, 8]


def test_late_and_duplicate_replies_change_nothing(run_strategy: RunStrategy) -> None:
    """Every reply comes again, later and with another model in it."""

    class Echoing(FakeGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            replies = list(super().send_and_receive(messages, timeout=timeout))
            if messages and messages[0].metadata.message_type == "train":
                wrong = write_update(Update({"mixed": model(99)}, {"mixed": 0.0}, Losses(1, 10)), LAYOUT)
                replies += [Message(wrong, reply_to=message) for message in messages]
                self.stray += replies
            return replies

    outcome = run_strategy(Echoing(dict(FOUR)), strategy="fedavg")
    assert outcome.predictors == [8, 8]
    assert all(record.account.answered == 4 and not record.account.rejections for record in outcome.watcher.records)


def update_of(array: Any) -> RecordDict:
    metrics = MetricRecord({"num-clients": 1, "num-examples": 10, "train-loss-mixed": 0.5})
    return RecordDict({"mixed": ArrayRecord({"w": Array(np.asarray(array))}), "update": metrics})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (update_of(np.array([math.nan, 1], np.float32)), "mixed: the model has values that are not finite"),
        (update_of(np.array([math.inf, 1], np.float32)), "mixed: the model has values that are not finite"),
        (update_of(np.zeros(3, np.float32)), "mixed: w must be numpy float32 (2,), got numpy.ndarray float32 (3,)"),
        (update_of(np.zeros(2)), "mixed: w must be numpy float32 (2,), got numpy.ndarray float64 (2,)"),
        (RecordDict({}), "MetricRecord 'update' is missing"),
    ],
)
def test_a_wrong_update_is_rejected_by_name_and_counted(
    run_strategy: RunStrategy, content: RecordDict, reason: str
) -> None:
    grid = a_grid(sabotage=lambda sent, honest: content if sent.node == 12 else honest)
    outcome = run_strategy(grid, strategy="fedavg", quarantine_after=0)
    rows = outcome.rows
    assert [row["clients-rejected"] for row in rows] == [1] * 8
    assert all(row["rejections"] == [{"node": "12", "clients": [1], "reason": reason}] for row in rows)
    assert outcome.predictors == [8, 8]


def test_a_node_that_is_always_wrong_sits_out(run_strategy: RunStrategy) -> None:
    grid = a_grid(sabotage=lambda sent, honest: RecordDict({}) if sent.node == 12 else honest)
    run_strategy(grid, strategy="fedavg", quarantine_after=3, quarantine_rounds=4)
    assert [sent.order.server_round for sent in grid.sent if sent.node == 12] == [1, 2, 3, 8]


def test_an_update_that_moves_too_far_is_rejected(run_strategy: RunStrategy) -> None:
    grid = a_grid(sabotage=lambda sent, honest: update_of(model(1000)) if sent.node == 12 else honest)
    outcome = run_strategy(grid, strategy="fedavg", max_update_norm=2.0)
    told = outcome.watcher.records[0].account.rejections[0].reason
    assert "the update moves the model by 1414.21, max-update-norm is 2" in told
    assert outcome.predictors == [8, 8]


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("mean", 251.75), ("median", 3.0), ("trimmed-mean", 3.0), ("krum", 1.0)]
)
def test_robust_aggregation_withstands_one_liar(run_strategy: RunStrategy, aggregation: str, expected: float) -> None:
    lies = {11: 1.0, 12: 2.0, 13: 4.0, 14: 1000.0}
    grid = a_grid(sabotage=lambda sent, honest: update_of(model(lies[sent.node])), blocks=1)
    outcome = run_strategy(grid, strategy="fedavg", aggregation=aggregation, blocks=1, cycles=1, rounds_per_block=1)
    assert outcome.predictors == [expected]


@pytest.mark.parametrize(
    ("weighting", "expected"), [("clients", (3 * 1 + 1 * 5) / 4), ("examples", (30 * 1 + 70 * 5) / 100)]
)
def test_an_update_weighs_by_its_clients_or_its_examples(
    run_strategy: RunStrategy, weighting: str, expected: float
) -> None:
    def sabotage(sent: Sent, honest: RecordDict) -> RecordDict:
        value, clients, examples = (1.0, 3, 30) if sent.node == 11 else (5.0, 1, 70)
        return write_update(Update({"mixed": model(value)}, {"mixed": value}, Losses(clients, examples)), LAYOUT)

    grid = FakeGrid({11: (0, 1, 2), 12: (3,)}, blocks=1, sabotage=sabotage)
    keys = {"strategy": "fedavg", "blocks": 1, "cycles": 1, "rounds_per_block": 1, "weighting": weighting}
    outcome = run_strategy(grid, **keys)
    assert outcome.predictors == [pytest.approx(expected)]
    assert train_losses(outcome.watcher.records[0])["mixed"] == pytest.approx(expected)


def test_orders_carry_slot_and_clients(run_strategy: RunStrategy) -> None:
    grid = a_grid()
    run_strategy(grid)
    order = next(sent.order for sent in grid.sent if sent.order.server_round == 4)
    assert (order.cycle, order.block, order.clients) == (0, 1, (0,))


def test_a_strategy_goes_on_from_any_state_as_if_never_stopped(run_strategy: RunStrategy) -> None:
    """Also from one whose round still awaits its vote."""
    whole = run_strategy(a_grid(losses=lambda order, models: (models["mixed"], 25.0)))
    told = 0
    for state in whole.watcher.states[:-1]:
        rest = run_strategy(a_grid(losses=lambda order, models: (models["mixed"], 25.0)), state=state)
        assert rest.predictors == whole.predictors
        strategy = state["strategy"]
        told = strategy["trained"]["server_round"] - (strategy["pending"] is not None)
        assert rest.rows == whole.rows[told:]
    assert told == 7
    assert any(state["strategy"]["pending"] is not None for state in whole.watcher.states)


class Skipping:
    """A clock that was in block 1 when the run went on, or past the end of it."""

    names, total_rounds, cycles = ("0", "1"), None, 1
    identity = RoundSchedule(2, 2).identity

    def __init__(self, *slots: Slot) -> None:
        self._slots = list(slots)

    def after(self, slot: Slot | None) -> Slot | None:
        return self._slots.pop(0) if self._slots else None


@pytest.mark.parametrize("slots", [(Slot(2, 0, 1, 0),), ()], ids=["another-block", "the-end"])
def test_a_round_that_awaits_its_vote_is_judged_in_its_own_block_when_the_clock_went_on(
    run_strategy: RunStrategy, slots: tuple[Slot, ...]
) -> None:
    def losses(order: Order, models: dict[str, float]) -> tuple[float, float]:
        return (1.0, 2.0) if order.block == 0 else (2.0, 1.0)

    state = run_strategy(a_grid(losses=losses)).watcher.states[0]
    assert state["strategy"]["pending"] is not None
    outcome = run_strategy(a_grid(losses=losses), state=state, schedule=Skipping(*slots))
    assert [(record.slot.block, record.chosen) for record in outcome.watcher.records] == [
        (0, "mixed"),
        *((slot.block, "separate") for slot in slots),
    ]
    assert outcome.folded == (1, len(slots))
    assert outcome.strategy.pending is None


def test_a_round_may_be_repeated_for_days(run_strategy: RunStrategy) -> None:
    grid = a_grid(sabotage=fails(set(FOUR), 1, times=1100))
    outcome = run_strategy(grid, strategy="fedavg", round_attempts=0, quarantine_after=0)
    assert outcome.watcher.records[0].attempts == 1101


@pytest.mark.parametrize(("strategy", "rounds_per_block"), [("mc-psgd", 1), ("mc-psgd", 3), ("ifca", 3)])
def test_good_votes_do_not_make_up_for_wrong_updates(
    run_strategy: RunStrategy, strategy: str, rounds_per_block: int
) -> None:
    grid = a_grid(sabotage=lambda sent, content: RecordDict({}) if wrong(sent) else content)

    def wrong(sent: Sent) -> bool:
        return sent.node == 12 and sent.message_type == MessageType.TRAIN

    keys = {"cycles": 3, "rounds_per_block": rounds_per_block, "quarantine_after": 3, "quarantine_rounds": 100}
    run_strategy(grid, strategy=strategy, **keys)
    assert [sent.order.server_round for sent in grid.sent if wrong(sent)] == [1, 2, 3]
