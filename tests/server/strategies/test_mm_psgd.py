"""MM-PSGD on clients whose every answer is known, and against a NumPy reference."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    Result,
    Strategy,
)

from perennial import MCPSGD, MMPSGD, ClockSchedule, RoundSchedule
from perennial.common.command.errors import InputError, RunError
from perennial.common.cycle.clock import FakeClock
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.strategies import training_loop
from perennial.server.strategies.record import FoldedRound
from tests.server.strategies.players import Players, lr, model, number

DAY_NIGHT = RoundSchedule(["day", "night"], 2)
QUIET = {"fraction_evaluate": 0.0}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "_LONGEST_PAUSE", 0.0)


# --- What is folded ---------------------------------------------------------------------------------------------------


def test_each_block_has_the_running_mean_of_the_models_of_its_rounds() -> None:
    strategy = MMPSGD(schedule=DAY_NIGHT, averaging="mean", **QUIET)
    result = strategy.start(Players().grid(), model(0), 6)
    # Rounds 1 to 6 give 1 to 6; day has 1, 2, 5, 6 and night has 3, 4.
    assert {name: number(one) for name, one in result.predictors.items()} == {"day": 3.5, "night": 3.5}
    assert number(result.arrays) == 6


def test_exponential_averaging_takes_the_first_model_whole_and_then_keeps_the_decay() -> None:
    strategy = MMPSGD(schedule=DAY_NIGHT, decay=0.25, **QUIET)
    result = strategy.start(Players().grid(), model(9), 3, train_config=lr(4))
    # 13, then 0.25 * 13 + 0.75 * 17; night has 21 whole.
    assert {name: number(one) for name, one in result.predictors.items()} == {"day": 16, "night": 21}


def test_exponential_with_a_decay_of_a_half_is_the_default() -> None:
    result = MMPSGD(schedule=RoundSchedule(1, 9), **QUIET).start(Players().grid(), model(0), 2)
    assert number(result.predictors["0"]) == 1.5


def test_a_block_that_was_not_trained_has_no_predictor() -> None:
    result = MMPSGD(schedule=DAY_NIGHT, **QUIET).start(Players().grid(), model(0), 2)
    assert list(result.predictors) == ["day"]
    assert isinstance(result, Result)


class Keeping(FedAvg):
    """Remembers what it gave."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        self.gave = super().aggregate_train(server_round, replies)
        return self.gave


def typed_app(message: Message, context: Any) -> Message:
    """Train float16, float32, float64, whole numbers and flags, as a network with BatchNorm has them."""
    if message.metadata.message_type == "evaluate":
        metrics = MetricRecord({"num-examples": 1, "eval_loss": 1.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    found = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
    # FedAvg sends the mean of flags as floats.
    moved = {name: Array(np.asarray(one < 0.5 if name == "flag" else one + one.dtype.type(1)))
             for name, one in found.items()}  # fmt: skip
    metrics = MetricRecord({"num-examples": 1 + int(context.node_config["partition-id"])})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
def test_predictors_have_the_dtypes_of_the_initial_model_and_counters_of_the_newest(kind: type[MMPSGD]) -> None:
    initial = {
        "half": np.zeros(2, np.float16),
        "single": np.full(2, 0.1, np.float32),
        "double": np.full((1, 2), 0.1),
        "count": np.array(5),
        "small": np.array([1, 2], np.uint8),
        "flag": np.array([True, False]),
    }
    strategy = kind(Keeping(fraction_evaluate=0.0), schedule=RoundSchedule(1, 9))
    arrays = ArrayRecord({name: Array(one) for name, one in initial.items()})
    result = strategy.start(MemoryGrid(typed_app, 3), arrays, 3)
    found = {name: one.numpy() for name, one in result.predictors["0"].items()}
    assert {name: one.dtype for name, one in found.items()} == {name: one.dtype for name, one in initial.items()}
    assert {name: one.shape for name, one in found.items()} == {name: one.shape for name, one in initial.items()}
    # FedAvg makes 7.999999999999999 of three eights.
    assert found["count"] == 8
    assert found["small"].tolist() == [4, 5]
    assert found["flag"].tolist() == [False, True]
    # 1, 2, 3 folded with a decay of a half.
    assert found["half"].tolist() == [2.25, 2.25]
    assert np.allclose(found["double"], 2.35, rtol=0, atol=1e-12)
    inner = strategy.mixed.strategy
    assert isinstance(inner, Keeping)
    assert result.arrays == inner.gave[0]


# --- Which strategy ---------------------------------------------------------------------------------------------------


def test_without_a_strategy_the_arguments_are_fedavg_s() -> None:
    inner = MMPSGD(schedule=DAY_NIGHT, fraction_train=0.5, min_available_nodes=7).mixed.strategy
    assert type(inner) is FedAvg
    assert (inner.fraction_train, inner.min_available_nodes) == (0.5, 7)
    with pytest.raises(TypeError, match="fraction_fit"):
        MMPSGD(schedule=DAY_NIGHT, fraction_fit=0.5)


def test_the_strategy_inside_is_the_one_that_is_given() -> None:
    inner = FedAdam(eta=0.5)
    assert MMPSGD(inner, schedule=DAY_NIGHT).mixed.strategy is inner


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((FedAdam(),), {"fraction_train": 0.5}, r"a strategy and arguments for FedAvg \(fraction_train\) at once"),
        ((FedAvg,), {}, "must be a Flower strategy such as FedAvg"),
        ((DAY_NIGHT,), {}, "must be a Flower strategy such as FedAvg"),
        ((), {"schedule": 3}, "schedule must be a RoundSchedule or a ClockSchedule, got 3"),
        ((), {"averaging": "median"}, "averaging must be one of exponential, mean, got 'median'"),
        ((), {"decay": 1.5}, r"decay must be in \[0, 1\], got 1.5"),
        ((), {"round_attempts": 0}, "round_attempts must be at least 1, got 0"),
        ((MMPSGD(schedule=DAY_NIGHT),), {}, "cannot be around MMPSGD"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    kind: type[MMPSGD], arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        kind(*arguments, **{"schedule": DAY_NIGHT, **options})


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_clients_find_their_slot_in_the_config_of_train_and_evaluate_messages() -> None:
    players = Players()
    MMPSGD(schedule=DAY_NIGHT).start(players.grid(), model(0), 6, train_config=lr(2))
    slots = [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0)]
    for kind, chain in (("train", "mixed"), ("evaluate", "predictor")):
        for server_round, (cycle, block) in enumerate(slots, 1):
            found = players.of(kind, server_round=server_round)
            assert len(found) == 3
            for _, config, _ in found:
                slot = {"server-round": server_round, "cycle": cycle, "block": block}
                slot |= {"block-name": ["day", "night"][block], "chain": chain}
                assert config == {**slot, **({"lr": 2.0} if kind == "train" else {})}


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
def test_no_two_messages_share_a_record_and_the_user_s_own_stay_as_they_were(kind: type[MMPSGD]) -> None:
    players, arrays = Players(), model(0)
    grid = players.grid()
    configs = (ConfigRecord({"lr": 1.0, "sizes": [1, 2]}), ConfigRecord({"batch": 3}))
    kind(schedule=DAY_NIGHT).start(grid, arrays, 4, train_config=configs[0], evaluate_config=configs[1])
    messages = [message for sent in grid.sent for message in sent]
    records = [record for one in messages for record in (one.content, *one.content.values())]
    assert len({id(record) for record in records}) == len(records)
    assert (dict(configs[0]), dict(configs[1])) == ({"lr": 1.0, "sizes": [1, 2]}, {"batch": 3})
    assert (list(arrays), number(arrays)) == (["w"], 0)
    lists = [id(one.content.config_records["config"]["sizes"]) for one in messages
             if one.metadata.message_type == "train"]  # fmt: skip
    assert len(set(lists)) == len(lists)


def test_record_names_are_the_inner_strategy_s() -> None:
    names = {"arrayrecord_key": "weights", "configrecord_key": "settings"}
    grid = Players().grid()
    with pytest.raises(RunError):
        MMPSGD(schedule=DAY_NIGHT, round_attempts=1, **names).start(grid, model(0), 1)
    (message, *_) = grid.sent[0]
    assert set(message.content) == {"weights", "settings"}
    assert message.content["settings"]["block-name"] == "day"


@pytest.mark.parametrize("what", ["train_config", "evaluate_config"])
def test_a_config_that_has_a_key_of_the_slot_is_refused(what: str) -> None:
    with pytest.raises(InputError, match=f"{what} has 'block', which is written for every round"):
        MMPSGD(schedule=DAY_NIGHT).start(Players().grid(), model(0), 1, **{what: ConfigRecord({"block": 1})})


# --- Evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
def test_federated_evaluation_judges_the_predictor_of_the_round_s_block(kind: type[MMPSGD]) -> None:
    players = Players()
    result = kind(schedule=DAY_NIGHT).start(players.grid(), model(0), 4)
    judged = {server_round: players.of("evaluate", server_round=server_round, chain="predictor")[0][2]
              for server_round in (1, 2, 3, 4)}  # fmt: skip
    assert judged == ({1: 1, 2: 1.5, 3: 3, 4: 3.5} if kind is MMPSGD else {1: 1, 2: 1.5, 3: 1, 4: 1.5})
    assert {one: metrics["eval_loss"] for one, metrics in result.evaluate_metrics_clientapp.items()} == (
        pytest.approx(judged)
    )


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
def test_evaluate_fn_judges_the_predictor_and_finds_its_block_in_the_slot(kind: type[MMPSGD]) -> None:
    seen: list[tuple[int, str, float]] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        assert strategy.slot
        seen.append((server_round, strategy.schedule.names[strategy.slot.block], number(arrays)))
        arrays.clear()  # it may take the record apart
        return MetricRecord({"seen": server_round}) if server_round != 2 else None

    strategy = kind(schedule=DAY_NIGHT, averaging="mean", **QUIET)
    result = strategy.start(Players().grid(), model(0), 3, evaluate_fn=evaluate)
    assert seen == [(0, "day", 0), (1, "day", 1), (2, "day", 1.5), (3, "night", 3 if kind is MMPSGD else 1)]
    assert {one: dict(metrics) for one, metrics in result.evaluate_metrics_serverapp.items()} == {
        0: {"seen": 0}, 1: {"seen": 1}, 3: {"seen": 3}
    }  # fmt: skip
    assert number(result.predictors["day"]) == 1.5


# --- The loop ---------------------------------------------------------------------------------------------------------


def test_without_num_rounds_the_schedule_ends_the_run() -> None:
    rounds: list[FoldedRound] = []
    schedule = RoundSchedule(["day", "night"], rounds_per_block=2, cycles=3)
    MMPSGD(schedule=schedule, **QUIET).start(Players().grid(), model(0), on_round=rounds.append)
    assert [one.slot.server_round for one in rounds] == list(range(1, 13))


@pytest.mark.parametrize(
    "schedule", [DAY_NIGHT, ClockSchedule("day: 08:00-20:00, night: 20:00-08:00", timezone="Europe/Berlin")]
)
def test_a_schedule_without_an_end_needs_num_rounds(schedule: Any) -> None:
    with pytest.raises(InputError, match="the schedule has no end: give start num_rounds"):
        MMPSGD(schedule=schedule).start(Players().grid(), model(0))


@pytest.mark.parametrize(("num_rounds", "message"), [(0, "at least 1"), (2.0, "at least 1"), (5, "ends after 4")])
def test_num_rounds_that_cannot_be_are_refused(num_rounds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MMPSGD(schedule=RoundSchedule(2, 2, 1)).start(Players().grid(), model(0), num_rounds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_arrays": ArrayRecord()}, "initial_arrays is empty"),
        ({"initial_arrays": [np.zeros(3)]}, "initial_arrays must be an ArrayRecord"),
        ({"train_config": {"lr": 0.1}}, "train_config must be a ConfigRecord"),
        ({"evaluate_config": {"lr": 0.1}}, "evaluate_config must be a ConfigRecord"),
    ],
)
def test_what_start_cannot_use_is_refused_before_the_first_round(arguments: dict[str, Any], message: str) -> None:
    players = Players()
    with pytest.raises(InputError, match=message):
        MMPSGD(schedule=DAY_NIGHT).start(players.grid(), **{"initial_arrays": model(0), "num_rounds": 1, **arguments})
    assert players.heard == []


def test_a_class_in_the_place_of_a_schedule_is_refused() -> None:
    with pytest.raises(InputError, match="schedule must be a RoundSchedule or a ClockSchedule"):
        MMPSGD(schedule=RoundSchedule)  # type: ignore[arg-type]


def test_a_clock_decides_the_block_and_ends_the_run() -> None:
    start = datetime(2026, 6, 1, 12, tzinfo=UTC)
    schedule = ClockSchedule("day: 08:00-20:00, night: 20:00-08:00", cycles=1, started=start,
                             clock=FakeClock(start, timedelta(hours=6)))  # fmt: skip
    rounds: list[FoldedRound] = []
    MMPSGD(schedule=schedule, **QUIET).start(Players().grid(), model(0), on_round=rounds.append)
    assert [one.block_name for one in rounds] == ["day", "day", "night", "night"]


def test_stop_ends_the_run_after_a_round() -> None:
    rounds: list[FoldedRound] = []
    result = MMPSGD(schedule=DAY_NIGHT, **QUIET).start(
        Players().grid(), model(0), 9, on_round=rounds.append, stop=lambda: len(rounds) == 3
    )
    assert len(rounds) == 3
    assert number(result.arrays) == 3


def test_a_round_without_a_usable_reply_folds_nothing_and_its_slot_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    players = Players()
    players.fails = lambda node, kind, config: config["server-round"] == 2 and len(players.heard) < 13
    rounds: list[FoldedRound] = []
    with caplog.at_level(logging.WARNING):
        result = MMPSGD(schedule=DAY_NIGHT, averaging="mean", **QUIET).start(
            players.grid(), model(0), 3, on_round=rounds.append
        )
    assert [config["server-round"] for _, config, _ in players.of("train")][::3] == [1, 2, 2, 2, 2, 3]
    assert {config["block"] for _, config, _ in players.of("train", server_round=2)} == {0}
    assert [one.attempts for one in rounds] == [1, 4, 1]
    assert {name: number(one) for name, one in result.predictors.items()} == {"day": 1.5, "night": 3}
    assert "round 2, block day: the mixed chain got no usable reply" in caplog.text
    assert "is ill" in caplog.text


@pytest.mark.parametrize(("options", "attempts"), [({}, 10), ({"round_attempts": 3}, 3)])
def test_a_slot_comes_ten_times_at_most(options: dict[str, int], attempts: int) -> None:
    players = Players(fails=lambda node, kind, config: config["server-round"] == 3)
    with pytest.raises(RunError, match=f"round 3, block night: .*is ill.*{attempts} times in a row"):
        MMPSGD(schedule=DAY_NIGHT, **QUIET, **options).start(players.grid(), model(0), 9)
    assert len(players.of("train", server_round=3)) == 3 * attempts


@pytest.mark.parametrize("what", ["evaluate_fn", "on_round", "stop"])
def test_what_is_no_function_is_refused_before_the_first_round(what: str) -> None:
    players = Players()
    with pytest.raises(InputError, match=f"{what} must be a function, got 3"):
        MMPSGD(schedule=DAY_NIGHT, **QUIET).start(players.grid(), model(0), 3, **{what: 3})
    assert players.heard == []


def test_num_rounds_counts_the_rounds_that_are_folded() -> None:
    players = Players()
    players.fails = lambda node, kind, config: len(players.heard) % 4 > 1
    result = MMPSGD(schedule=DAY_NIGHT, **QUIET).start(players.grid(2), model(0), 5)
    assert number(result.arrays) == 5


def test_the_record_of_a_round_has_what_happened_in_it() -> None:
    rounds: list[FoldedRound] = []
    players = Players(fails=lambda node, kind, config: node == 1 and kind == "train")
    MMPSGD(schedule=DAY_NIGHT).start(
        players.grid(), model(0), 1, on_round=rounds.append, evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5})
    )
    (one,) = rounds
    assert (one.slot.server_round, one.block_name, one.chosen, one.losses, one.folded) == (
        1,
        "day",
        None,
        {},
        {"day": 1},
    )
    assert (sorted(one.nodes), sorted(one.answered)) == ([2, 3, 4], [2, 4])
    size = len(model(0)["w"].data)
    assert (one.bytes_down, one.bytes_up) == (6 * size, 2 * size)
    assert 0 < one.seconds < 60
    assert one.train_metrics["mixed"] == {"train_loss": 1.0}
    assert one.evaluate_metrics == {"eval_loss": 1.0}
    assert one.server_metrics == {"accuracy": 0.5}
    assert number(one.predictors["day"]) == 1


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
def test_on_round_may_take_its_predictors_apart(kind: type[MMPSGD]) -> None:
    result = kind(schedule=DAY_NIGHT, **QUIET).start(
        Players().grid(),
        model(0),
        4,
        on_round=lambda one: [arrays.clear() for arrays in one.predictors.values()] and None,
    )
    assert number(result.predictors["day"]) == 1.5


def test_log_lines_are_flower_s(caplog: pytest.LogCaptureFixture) -> None:
    random.seed(1)
    with caplog.at_level(logging.INFO, "flwr"):
        FedAvg().start(Players().grid(), model(0), 2)
        flower = [record.getMessage() for record in caplog.records]
        caplog.clear()
        MMPSGD(schedule=DAY_NIGHT).start(Players().grid(), model(0), 2)
    ours = [record.getMessage() for record in caplog.records]
    # What only one of the two can log, and what has other numbers in it.
    own = ("Starting", "Strategy execution", "cycle", "\tPredictors", "\t└──> Aggregated", "\t  ", "\t{", "\t\t",
           "\t├──> MMPSGD", "\t│\t├── Blocks", "\t│\t└── averaging")  # fmt: skip
    assert [line for line in ours if line.strip() and not line.startswith(own)] == [
        line for line in flower if line.strip() and not line.startswith(own)
    ]
    assert "Starting MMPSGD strategy:" in ours
    assert "[ROUND 2/2]" in ours
    told = [sum("└──> Aggregated MetricRecord" in line for line in lines) for lines in (ours, flower)]
    assert told == [4, 4]


# --- Other people's code ----------------------------------------------------------------------------------------------


def test_a_subclass_extends_the_hooks() -> None:
    class Doubled(MMPSGD):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            config["lr"] = float(server_round)
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(
            self, server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, metrics = super().aggregate_train(server_round, replies)
            return (model(2 * number(arrays)) if arrays else None), metrics

    result = Doubled(schedule=DAY_NIGHT, **QUIET).start(Players().grid(), model(0), 2)
    # (0 + 1) * 2, then (2 + 2) * 2.
    assert number(result.arrays) == 8
    assert isinstance(Doubled(schedule=DAY_NIGHT), Strategy)


@pytest.mark.parametrize("kind", [MMPSGD, MCPSGD])
def test_driven_by_another_strategy_s_loop_the_hooks_refuse(kind: type[MMPSGD]) -> None:
    around = DifferentialPrivacyServerSideFixedClipping(kind(schedule=DAY_NIGHT), 1.0, 1.0, 3)
    with pytest.raises(InputError, match=r"runs by its own start\(\) alone") as caught:
        around.start(Players().grid(), model(0), 1)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"runs by its own start\(\) alone"):
        Strategy.start(kind(schedule=DAY_NIGHT), Players().grid(), model(0), 1)
    with pytest.raises(InputError, match=r"runs by its own start\(\) alone"):
        kind(schedule=DAY_NIGHT).aggregate_train(1, [])


class Renaming(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return ArrayRecord({"v": arrays["w"]}), metrics


class Reshaping(FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        _, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({"w": Array(np.zeros(2, np.float32))}), metrics


@pytest.mark.parametrize(
    ("inner", "message"),
    [(Renaming(), "Renaming gave a model with no array 'w'"),
     (Reshaping(), r"Reshaping gave a model with 'w' of shape \(2,\) in place of \(\)")],
)  # fmt: skip
def test_a_strategy_that_changes_names_or_shapes_is_refused_by_name(inner: Strategy, message: str) -> None:
    with pytest.raises(InputError, match=f"mixed chain: {message}"):
        MMPSGD(inner, schedule=DAY_NIGHT).start(Players().grid(), model(0), 1)


@pytest.mark.parametrize("inner", [FedAvg(), FedMedian()])
@pytest.mark.parametrize("odd", [{2}, {2, 3, 4}])
@pytest.mark.parametrize(
    ("answer", "message"),
    [({"v": np.zeros(())}, "no array 'w'"), ({"w": np.zeros(3)}, r"'w' of shape \(3,\) in place of \(\)"),
     ({"w": np.zeros(()), "v": np.zeros(())}, "an array 'v' that the initial model does not have")],
)  # fmt: skip
def test_clients_that_answer_with_another_model_are_named(
    inner: Strategy, odd: set[int], answer: dict[str, Any], message: str
) -> None:
    players = Players()

    def app(received: Message, context: Any) -> Message:
        reply = players(received, context)
        if context.node_id in odd:
            arrays = {name: Array(np.asarray(one, np.float32)) for name, one in answer.items()}
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    node = "[234]" if len(odd) == 3 else "2"
    with pytest.raises(InputError, match=f"mixed chain: node {node} answered with a model that has {message}"):
        MMPSGD(inner, schedule=DAY_NIGHT).start(MemoryGrid(app, 3), model(0), 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"metrics": MetricRecord({"num-examples": 1})}, r"0 ArrayRecords and 1 MetricRecords.*it has 'metrics'"),
        ({"arrays": model(1.0), "metrics": MetricRecord({"examples": 1})}, "no metric 'num-examples'.*'examples'"),
    ],
)
def test_replies_with_other_keys_are_an_error_that_names_those_that_are_there(content: Any, message: str) -> None:
    def app(received: Message, context: Any) -> Message:
        return Message(RecordDict(content), reply_to=received)

    with pytest.raises(InputError, match=f"mixed chain: node [23] answered with {message}"):
        MMPSGD(schedule=DAY_NIGHT).start(MemoryGrid(app, 2), model(0), 1)
