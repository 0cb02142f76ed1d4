"""MC-PSGD on clients whose every answer is known."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, SamplingMethod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg, Strategy

from perennial import MCPSGD, MMPSGD, RoundSchedule
from perennial.common.command.errors import InputError, RunError
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.strategies import grids, training_loop
from perennial.server.strategies.record import FoldedRound
from tests.server.strategies.players import Config, Players, lr, model, number

DAY_NIGHT = RoundSchedule(["day", "night"], 2)
QUIET = {"fraction_evaluate": 0.0}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "_LONGEST_PAUSE", 0.0)


def run(players: Players, rounds: int, *, nodes: int = 3, **options: Any) -> tuple[MCPSGD, list[FoldedRound], Any]:
    strategy = MCPSGD(**{"schedule": DAY_NIGHT, **QUIET, **options})
    records: list[FoldedRound] = []
    result = strategy.start(players.grid(nodes), model(0), rounds, train_config=lr(1), on_round=records.append)
    return strategy, records, result


def prefers(chain: str) -> Callable[[int, Config, float], float]:
    return lambda node, config, value: float(config["chain"] != chain)


# --- The chains -------------------------------------------------------------------------------------------------------


def test_the_mixed_chain_crosses_blocks_and_a_separate_chain_goes_on_in_its_own() -> None:
    players = Players()
    strategy, _, result = run(players, 6, separate_config=lr(10))
    sent = {chain: [value for node, _, value in players.of("train", chain=chain) if node == 0]
            for chain in ("mixed", "separate")}  # fmt: skip
    assert sent["mixed"] == [0, 1, 2, 3, 4, 5]
    # Lines 13 to 16: rounds 1, 2 are of day, 3, 4 of night, and in round 5 day goes on from its own 20.
    assert sent["separate"] == [0, 10, 0, 10, 20, 30]
    assert number(result.arrays) == 6
    assert [number(chain.arrays) for chain in strategy.separate] == [40, 20]


def test_the_chosen_model_is_folded() -> None:
    for chain, expected in (("mixed", {"day": 1.5, "night": 3.5}), ("separate", {"day": 15, "night": 15})):
        _, records, result = run(Players(loss=prefers(chain)), 4, averaging="mean", separate_config=lr(10))
        assert [one.chosen for one in records] == [chain] * 4
        assert {name: number(one) for name, one in result.predictors.items()} == expected


def test_separate_config_is_what_is_different_for_the_separate_chain() -> None:
    players = Players()
    strategy = MCPSGD(schedule=DAY_NIGHT, separate_config=ConfigRecord({"lr": 5.0, "extra": "a"}), **QUIET)
    strategy.start(players.grid(), model(0), 1, train_config=ConfigRecord({"lr": 1.0, "batch": 8}))
    slot = {"server-round": 1, "cycle": 0, "block": 0, "block-name": "day"}
    assert players.of("train", chain="mixed")[0][1] == {**slot, "chain": "mixed", "lr": 1.0, "batch": 8}
    separate = {**slot, "chain": "separate", "lr": 5.0, "batch": 8, "extra": "a"}
    assert players.of("train", chain="separate")[0][1] == separate


def test_both_chains_are_sent_to_the_same_nodes_and_draw_as_the_strategy_alone() -> None:
    cohorts = {}
    for name, start in {
        "alone": lambda grid: FedAvg(fraction_train=0.4).start(grid, model(0), 6),
        "mm": lambda grid: MMPSGD(schedule=DAY_NIGHT, fraction_train=0.4).start(grid, model(0), 6),
        "mc": lambda grid: MCPSGD(schedule=DAY_NIGHT, fraction_train=0.4).start(grid, model(0), 6),
    }.items():
        players = Players()
        random.seed(5)
        start(players.grid(10))
        for chain in ("mixed", "separate"):
            found = [[node for node, config, _ in players.of("train") if config["server-round"] == number
                      and config.get("chain", chain) == chain] for number in range(1, 7)]  # fmt: skip
            if name != "mm" or chain == "mixed":
                cohorts[name, chain] = found
    assert len({str(found) for found in cohorts.values()}) == 1
    assert len({str(cohort) for cohort in cohorts["mc", "mixed"]}) > 1


def test_a_separate_chain_without_replies_keeps_its_model() -> None:
    players = Players(fails=lambda node, kind, config: kind == "train" and config["chain"] == "separate"
                      and config["server-round"] == 2)  # fmt: skip
    strategy, records, _ = run(players, 4, loss_key="eval_loss")
    assert [one.attempts for one in records] == [1, 1, 1, 1]
    assert [number(chain.arrays) for chain in strategy.separate] == [1, 2]
    assert [chain.rounds for chain in strategy.separate] == [1, 2]


def test_if_the_mixed_chain_gets_no_reply_no_chain_moves_and_the_slot_comes_again() -> None:
    players = Players()
    failing = [True, True]
    players.fails = lambda node, kind, config: (
        kind == "train" and config["chain"] == "mixed" and config["server-round"] == 2 and bool(failing)
    )
    strategy = MCPSGD(schedule=DAY_NIGHT, **QUIET)
    grid = players.grid()
    sending = grid.send_and_receive

    def counted(messages: Any, **options: Any) -> Any:
        replies = sending(messages, **options)
        if any(reply.has_error() for reply in replies):
            failing.pop()
        return replies

    grid.send_and_receive = counted  # type: ignore[method-assign]
    records: list[FoldedRound] = []
    strategy.start(grid, model(0), 3, train_config=lr(1), on_round=records.append)
    assert [one.attempts for one in records] == [1, 3, 1]
    assert [number(chain.arrays) for chain in strategy.separate] == [2, 1]
    assert len(players.of("train", server_round=2, chain="separate")) == 9


# --- The vote ---------------------------------------------------------------------------------------------------------


def test_the_nodes_that_trained_vote_whatever_fraction_evaluate_is() -> None:
    players = Players(fails=lambda node, kind, config: kind == "train" and node == 1)
    random.seed(1)
    _, records, _ = run(players, 2, nodes=4, fraction_evaluate=0.0)
    for one in records:
        votes = players.of("evaluate", server_round=one.slot.server_round)
        assert sorted(node for node, config, _ in votes if config["chain"] == "mixed") == [0, 2, 3]
        assert sorted(node for node, config, _ in votes if config["chain"] == "separate") == [0, 2, 3]
    assert [value for _, _, value in players.of("evaluate", server_round=2, chain="mixed")] == [2, 2, 2]


def test_votes_carry_the_evaluate_config_and_the_slot() -> None:
    players = Players()
    strategy = MCPSGD(schedule=DAY_NIGHT, **QUIET)
    strategy.start(players.grid(), model(0), 3, train_config=lr(1), evaluate_config=ConfigRecord({"batch": 4}))
    slot = {"server-round": 3, "cycle": 0, "block": 1, "block-name": "night"}
    votes = players.of("evaluate", server_round=3)
    assert [config for _, config, _ in votes] == [
        {**slot, "batch": 4, "chain": chain} for chain in ("mixed", "separate") for _ in range(3)
    ]


def test_votes_have_the_record_names_of_train_messages() -> None:
    class Renamed(FedAvg):
        """Has a second config record, and a second array record, in its train messages."""

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            extra = {"a-first": ConfigRecord({"x": 1}), "a-control": ArrayRecord()}
            messages[0].content.update(RecordDict(extra))
            return messages

    def app(message: Message, context: Any) -> Message:
        renamed = {"arrays": message.content["weights"], "config": message.content["settings"]}
        message.content = RecordDict(renamed)
        return players(message, context)

    players = Players()
    grid = MemoryGrid(app, 2)
    inner = Renamed(arrayrecord_key="weights", configrecord_key="settings", fraction_evaluate=0.0)
    MCPSGD(inner, schedule=DAY_NIGHT).start(grid, model(0), 1)
    train, vote = grid.sent
    assert {name for message in train for name in message.content} == {"weights", "settings", "a-first", "a-control"}
    assert [set(message.content) for message in vote] == [{"weights", "settings"}] * 4


@pytest.mark.parametrize(("weights", "chosen"), [("examples", "mixed"), ("nodes", "separate")])
def test_nodes_weigh_by_examples_or_each_alike(weights: str, chosen: str) -> None:
    """Two of three nodes prefer the separate chain; the third has most of the examples."""
    players = Players(
        loss=lambda node, config, value: float((config["chain"] == "mixed") != (node == 0)),
        examples=lambda node: 10 if node == 0 else 1,
    )
    _, records, _ = run(players, 1, vote_weights=weights)
    assert records[0].chosen == chosen
    mixed = 2 / 12 if weights == "examples" else 2 / 3
    assert records[0].losses == pytest.approx({"mixed": mixed, "separate": 1 - mixed})


def test_the_weight_is_the_one_that_the_strategy_inside_weighs_by() -> None:
    class Mass(Players):
        def __call__(self, message: Message, context: Any) -> Message:
            reply = super().__call__(message, context)
            record = reply.content.metric_records["metrics"]
            record["mass"] = record.pop("num-examples")
            return reply

    _, records, _ = run(Mass(examples=lambda node: node), 1, strategy=None, weighted_by_key="mass")
    assert records[0].chosen == "mixed"
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(weighted_by_key="mass"), 0.0, 1.0, 3)
    strategy = MCPSGD(private, schedule=DAY_NIGHT)
    strategy.start(Mass(examples=lambda node: node + 1).grid(), model(0), 1)


def test_loss_key_names_the_metric_and_any_finite_number_is_a_loss() -> None:
    players = Players(loss=lambda node, config, value: -5.0 if config["chain"] == "separate" else -4.0, loss_key="nll")
    _, records, _ = run(players, 1, loss_key="nll")
    assert (records[0].chosen, records[0].losses) == ("separate", pytest.approx({"mixed": -4, "separate": -5}))
    with pytest.raises(InputError, match=r"no number 'eval_loss' \(it has 'num-examples', 'nll'\)"):
        run(Players(loss_key="nll"), 1)


def test_a_tie_goes_to_the_mixed_chain() -> None:
    _, records, result = run(Players(loss=lambda *_: 2.0), 1, separate_config=lr(7))
    assert records[0].chosen == "mixed"
    assert number(result.predictors["day"]) == 1


def test_a_node_counts_only_if_it_answered_for_both_chains() -> None:
    players = Players(
        loss=lambda node, config, value: 100.0 if (node, config["chain"]) == (1, "mixed") else 1.0,
        fails=lambda node, kind, config: kind == "evaluate" and (node, config["chain"]) == (1, "separate"),
    )
    _, records, _ = run(players, 1)
    assert records[0].losses == {"mixed": 1.0, "separate": 1.0}


def test_a_loss_that_is_not_finite_makes_its_chain_lose(caplog: pytest.LogCaptureFixture) -> None:
    players = Players(loss=lambda node, config, value: math.nan if (node, config["chain"]) == (2, "mixed") else 1e9)
    with caplog.at_level(logging.WARNING):
        _, records, _ = run(players, 1)
    assert records[0].chosen == "separate"
    assert "round 1, block day: the loss of the mixed chain is nan" in caplog.text
    with pytest.raises(RunError, match="round 1, block day: the losses of both chains are not finite"):
        run(Players(loss=lambda *_: math.inf), 1)


def test_if_nobody_answers_the_vote_is_asked_once_more(caplog: pytest.LogCaptureFixture) -> None:
    players = Players(loss=prefers("separate"))
    players.fails = lambda node, kind, config: kind == "evaluate" and len(players.of("evaluate")) <= 6
    with caplog.at_level(logging.WARNING):
        _, records, _ = run(players, 1)
    assert records[0].chosen == "separate"
    assert len(players.of("evaluate")) == 12
    assert "no node judged both models" in caplog.text
    assert "is ill" in caplog.text


def test_if_nobody_answers_twice_the_mixed_chain_is_folded(caplog: pytest.LogCaptureFixture) -> None:
    players = Players(fails=lambda node, kind, config: kind == "evaluate")
    with caplog.at_level(logging.WARNING):
        _, records, result = run(players, 1, separate_config=lr(7))
    assert (records[0].chosen, records[0].losses) == ("mixed", {})
    assert number(result.predictors["day"]) == 1
    assert len(players.of("evaluate")) == 12
    assert "round 1, block day: the mixed chain is folded without a vote" in caplog.text


def test_the_record_has_the_bytes_of_both_chains_and_of_the_vote() -> None:
    _, records, _ = run(Players(), 1)
    size = len(model(0)["w"].data)
    assert (records[0].bytes_down, records[0].bytes_up) == (12 * size, 6 * size)
    assert set(records[0].train_metrics) == {"mixed", "separate"}


# --- A strategy for each block ----------------------------------------------------------------------------------------


def test_the_strategy_is_copied_for_each_block_when_it_is_constructed() -> None:
    inner = FedAdam(eta=0.5)
    strategy = MCPSGD(inner, schedule=RoundSchedule(3, 1))
    inner.eta = 0.7
    copies = [chain.strategy for chain in strategy.separate]
    assert [one.eta for one in copies if isinstance(one, FedAdam)] == [0.5] * 3
    assert len({id(one) for one in (inner, *copies)}) == 4


def test_separate_makes_one_for_each_block() -> None:
    made: list[Strategy] = []

    def make() -> Strategy:
        made.append(FedAvg())
        return made[-1]

    strategy = MCPSGD(schedule=RoundSchedule(3, 1), separate=make)
    assert [chain.strategy for chain in strategy.separate] == made
    assert len(made) == 3


class Locked(FedAvg):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_strategy_that_cannot_be_copied_needs_separate() -> None:
    with pytest.raises(InputError, match=r"Locked cannot be copied for each block \(TypeError.*give separate="):
        MCPSGD(Locked(), schedule=DAY_NIGHT)
    strategy = MCPSGD(Locked(), schedule=DAY_NIGHT, separate=Locked)
    strategy.start(Players().grid(), model(0), 3)


@pytest.mark.parametrize(
    ("separate", "message"),
    [
        (FedAvg(), "separate must be a function without arguments"),
        (lambda: 3, r"what separate\(\) made must be a Flower strategy"),
        (lambda one=FedAvg(): one, "gave one twice"),  # noqa: B008 - one and the same, each time
    ],
)
def test_a_separate_that_makes_no_new_strategy_is_refused(separate: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MCPSGD(schedule=DAY_NIGHT, separate=separate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vote_weights": "clients"}, "vote_weights must be one of examples, nodes"),
        ({"loss_key": 3}, "loss_key must be the name of a metric"),
        ({"separate_config": {"lr": 1.0}}, "separate_config must be a ConfigRecord"),
        ({"separate_config": ConfigRecord({"chain": "x"})}, "separate_config has 'chain'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MCPSGD(schedule=DAY_NIGHT, **options)


def accounted() -> Strategy:
    """Flower's accountant needs a package of its own; this has what its privacy wrapper looks at."""
    config = SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION, population_size=3, max_epsilon=None)
    spent = SimpleNamespace(epsilon=1.0, delta=0.1, num_releases=0)
    accountant: Any = SimpleNamespace(config=config, get_privacy_spent=lambda: spent, compose=lambda event: None)
    return DifferentialPrivacyServerSideFixedClipping(FedAvg(**QUIET), 1.0, 1.0, 3, accountant=accountant)


def test_a_strategy_with_an_accountant_is_refused_inside_mc_psgd_and_taken_by_mm_psgd() -> None:
    for options in ({}, {"separate": accounted}):
        with pytest.raises(InputError, match="would understate epsilon inside MCPSGD") as caught:
            MCPSGD(accounted(), schedule=DAY_NIGHT, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="would understate epsilon"):
        MCPSGD(schedule=DAY_NIGHT, separate=accounted)
    players = Players()
    failing = [True]
    players.fails = lambda node, kind, config: (
        node == 2 and config["server-round"] == 2 and bool(failing and failing.pop())
    )
    MMPSGD(accounted(), schedule=DAY_NIGHT).start(players.grid(), model(0), 3)


class Personal(FedAvg):
    """Sends each node a number of its own."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        for message in super().configure_train(server_round, arrays, config, grid):
            node = message.metadata.dst_node_id
            records = {"arrays": arrays, "config": ConfigRecord({**config, "lr": float(node)})}
            yield Message(RecordDict(records), node, "train")


def test_a_strategy_that_sends_each_node_something_of_its_own_is_taken_if_it_chose_the_same_nodes() -> None:
    players = Players()
    MCPSGD(Personal(**QUIET), schedule=DAY_NIGHT).start(players.grid(), model(0), 1)
    for chain in ("mixed", "separate"):
        assert {node: config["lr"] for node, config, _ in players.of("train", chain=chain)} == {0: 2, 1: 3, 2: 4}


def test_a_strategy_that_sends_each_node_something_of_its_own_to_other_nodes_is_refused_by_name() -> None:
    random.seed(1)
    strategy = MCPSGD(Personal(fraction_train=0.4), schedule=DAY_NIGHT)
    with pytest.raises(
        InputError, match="Personal of the separate chain sends each node something of its own and chose"
    ):
        strategy.start(Players().grid(10), model(0), 20)


def test_a_separate_strategy_that_waits_for_more_nodes_than_there_are_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grids, "_MOST_LOOKS", 3)
    strategy = MCPSGD(schedule=DAY_NIGHT, separate=lambda: FedAvg(min_available_nodes=9))
    with pytest.raises(InputError, match="FedAvg of the separate chain waits for more nodes than the 3"):
        strategy.start(Players().grid(), model(0), 1)


def test_a_subclass_that_sends_other_messages_is_told_so() -> None:
    class Remade(MCPSGD):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = super().configure_train(server_round, arrays, config, grid)
            return [Message(one.content, one.metadata.dst_node_id, "train") for one in messages]

    with pytest.raises(RunError, match="answers no message that was configured here"):
        Remade(schedule=DAY_NIGHT).start(Players().grid(), model(0), 1)
