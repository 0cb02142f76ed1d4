"""Both chains in one message: what the user's app sees, and that MC-PSGD is the same by it."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAdam, FedAvg

from perennial import MCPSGD, RoundSchedule, both_chains
from perennial.common.command.errors import InputError, RunError
from perennial.common.wire.protocol import ProtocolError
from perennial.common.wire.two_chains import Parts, read_parts, write_order, write_reply
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.strategies import training_loop
from perennial.server.strategies.record import FoldedRound
from tests.server.strategies.players import Players, lr, model, number
from tests.server.strategies.quickstart import initial_arrays, make_app

SCHEDULE = RoundSchedule(["day", "night"], rounds_per_block=3)
QUIET = {"fraction_evaluate": 0.0}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "_LONGEST_PAUSE", 0.0)


def plain(players: Players) -> ClientApp:
    """Return players as a ClientApp of functions."""
    app = ClientApp()
    app.train()(players)
    app.evaluate()(players)
    return app


def bits(arrays: ArrayRecord) -> dict[str, tuple[str, bytes]]:
    return {name: (str(array.numpy().dtype), array.numpy().tobytes()) for name, array in arrays.items()}


# --- The same algorithm -----------------------------------------------------------------------------------------------


class Told:
    """A mod of a user's own, which writes what it sees into the metrics."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str, list[str]]] = []

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        config = message.content.config_records["config"]
        keys = (message.metadata.message_type, str(config["chain"]), str(config["block-name"]), sorted(message.content))
        self.seen.append(keys)
        reply: Message = call_next(message, context)
        if message.metadata.message_type == "train":
            reply.content.metric_records["metrics"]["told"] = len(message.content)
        return reply


def trained(
    *, one_message: bool, wrapped: bool, rounds: int = 9
) -> tuple[MCPSGD, list[FoldedRound], Any, Told, MemoryGrid]:
    told = Told()
    app = make_app(mods=[told, fixedclipping_mod])
    grid = MemoryGrid(both_chains(app) if wrapped else app, 4)
    private = DifferentialPrivacyClientSideFixedClipping(FedAdam(eta=0.05), 0.0, 0.3, 4)
    strategy = MCPSGD(private, schedule=SCHEDULE, separate_config=lr(0.05), one_message=one_message)
    records: list[FoldedRound] = []
    random.seed(2)
    result = strategy.start(
        grid, initial_arrays(), rounds, train_config=lr(0.02), on_round=records.append,
        evaluate_config=ConfigRecord({"batch": 3}),
        evaluate_fn=lambda server_round, arrays: MetricRecord({"w": float(arrays["fc.weight"].numpy()[0])}),
    )  # fmt: skip
    return strategy, records, result, told, grid


def test_one_message_and_two_are_the_same_if_all_nodes_take_part() -> None:
    ways = [trained(one_message=False, wrapped=False), trained(one_message=True, wrapped=True)]
    (one, told), (other, also_told) = ((way[0], way[3]) for way in ways)
    assert bits(one.mixed.arrays) == bits(other.mixed.arrays)
    assert [bits(chain.arrays) for chain in one.separate] == [bits(chain.arrays) for chain in other.separate]
    rounds, others = (way[1] for way in ways)
    assert [record.slot.server_round for record in others] == list(range(1, 10))
    for mine, theirs in zip(rounds, others, strict=True):
        assert (mine.losses, mine.chosen, mine.slot) == (theirs.losses, theirs.chosen, theirs.slot)
        assert {name: bits(arrays) for name, arrays in mine.predictors.items()} == {
            name: bits(arrays) for name, arrays in theirs.predictors.items()
        }
        # The same nodes judge, and in the same order.
        assert mine.evaluate_metrics == theirs.evaluate_metrics
        assert mine.server_metrics == theirs.server_metrics
        assert mine.train_metrics == theirs.train_metrics
    assert {record.chosen for record in rounds} == {"mixed", "separate"}
    # Every mod and every function saw one chain at a time, and the same messages.
    assert sorted(told.seen) == sorted(also_told.seen)
    assert {tuple(keys) for _, _, _, keys in told.seen} == {("arrays", "config")}
    results = [way[2] for way in ways]
    assert results[0].evaluate_metrics_clientapp == results[1].evaluate_metrics_clientapp
    assert results[0].evaluate_metrics_serverapp == results[1].evaluate_metrics_serverapp


def test_a_vote_costs_an_exchange_only_where_the_block_changes_and_at_the_end() -> None:
    players = Players()
    grid = MemoryGrid(both_chains(plain(players)), 3)
    strategy = MCPSGD(schedule=SCHEDULE, one_message=True, **QUIET)
    strategy.start(grid, model(0), 8, train_config=lr(1))
    # Blocks change after rounds 3 and 6; round 8 is the last.
    kinds = [(sent[0].metadata.message_type, len(sent)) for sent in grid.sent]
    assert kinds == [*[("train", 3)] * 3, ("evaluate", 3), *[("train", 3)] * 3, ("evaluate", 3), *[("train", 3)] * 2,
                     ("evaluate", 3)]  # fmt: skip
    size = len(model(0)["w"].data)
    assert sum(len(record.data) for sent in grid.sent for one in sent for arrays in one.content.array_records.values()
               for record in arrays.values()) == 66 * size  # fmt: skip


class Counting(FedAvg):
    """Counts its evaluations in the config record that the loop hands round."""

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["evaluations"] = config.get("evaluations", 0) + 1
        return super().configure_evaluate(server_round, arrays, config, grid)


def test_an_evaluation_that_waits_for_its_vote_is_configured_as_if_it_had_not_waited() -> None:
    players = Players()
    strategy = MCPSGD(Counting(), schedule=SCHEDULE, one_message=True)
    grid = MemoryGrid(both_chains(plain(players)), 2)
    strategy.start(grid, model(0), 4)
    judged = players.of("evaluate", chain="predictor")
    assert [(config["server-round"], config["evaluations"]) for node, config, _ in judged if node == 0] == [
        (1, 1), (2, 2), (3, 3), (4, 4)
    ]  # fmt: skip
    messages = [message for sent in grid.sent for message in sent]
    records = [record for one in messages for record in (one.content, *one.content.values())]
    assert len({id(record) for record in records}) == len(records)


def test_half_of_the_nodes_are_those_that_the_strategy_alone_would_draw() -> None:
    options = {"fraction_train": 0.5, "fraction_evaluate": 0.3}
    nodes = []
    for strategy, app in (
        (FedAvg(**options), plain(Players())),
        (MCPSGD(schedule=SCHEDULE, one_message=True, **options), both_chains(plain(Players()))),
    ):
        grid = MemoryGrid(app, 10)
        random.seed(6)
        strategy.start(grid, model(0), 8, train_config=lr(1))
        drawn: dict[str, list[list[int]]] = {"train": [], "evaluate": []}
        for sent in grid.sent:
            if "chains" not in sent[0].content or sent[0].metadata.message_type == "train":
                drawn[sent[0].metadata.message_type].append([one.metadata.dst_node_id for one in sent])
        nodes.append(drawn)
    assert nodes[0] == nodes[1]
    assert len({str(cohort) for cohort in nodes[0]["evaluate"]}) > 4


def test_the_voters_are_the_next_round_s_nodes_and_get_the_evaluate_config_of_the_round_that_they_judge() -> None:
    players = Players()
    grid = MemoryGrid(both_chains(plain(players)), 10)
    strategy = MCPSGD(schedule=SCHEDULE, one_message=True, fraction_train=0.3, **QUIET)
    records: list[FoldedRound] = []
    strategy.start(grid, model(0), 3, train_config=lr(1), evaluate_config=ConfigRecord({"batch": 4}),
                   on_round=records.append)  # fmt: skip
    votes = players.of("evaluate", server_round=1, chain="separate")
    assert [node + 2 for node, _, _ in votes] == list(records[1].nodes)
    slot = {"server-round": 1, "cycle": 0, "block": 0, "block-name": "day", "chain": "separate"}
    assert votes[0][1:] == ({**slot, "batch": 4}, 1.0)
    assert [node + 2 for node, _, _ in players.of("evaluate", server_round=3, chain="mixed")] == list(records[2].nodes)


def test_stop_holds_the_vote_of_the_last_round() -> None:
    records: list[FoldedRound] = []
    strategy = MCPSGD(schedule=SCHEDULE, one_message=True, **QUIET)
    grid = MemoryGrid(both_chains(plain(Players())), 2)
    result = strategy.start(grid, model(0), 9, on_round=records.append, stop=lambda: strategy.trained is not None
                            and strategy.trained.server_round == 2)  # fmt: skip
    assert [one.slot.server_round for one in records] == [1, 2]
    assert number(result.predictors["day"]) == 1.5


# --- State ------------------------------------------------------------------------------------------------------------


def stateful_app() -> ClientApp:
    """Trains with a momentum that is in `context.state`, and counts its evaluations there."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        momentum = number(context.state["momentum"]) if "momentum" in context.state else 0.0  # type: ignore[arg-type]
        momentum = 0.5 * momentum + float(str(message.content["config"]["lr"])) * (1 + context.node_id % 3)
        context.state["momentum"] = model(momentum)
        value = number(message.content.array_records["arrays"]) + momentum
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": model(value), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        done = int(str(context.state["judged"]["count"])) if "judged" in context.state else 0
        # A new RecordDict in the place of the old one is kept as well.
        context.state = RecordDict({**context.state, "judged": ConfigRecord({"count": done + 1})})
        metrics = MetricRecord({"num-examples": 1, "eval_loss": number(message.content.array_records["arrays"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def alone(config: ConfigRecord, rounds: int) -> tuple[ArrayRecord, list[float]]:
    grid = MemoryGrid(stateful_app(), 4)
    # All numbers and weights are sums of powers of two, so that the order of replies changes nothing.
    result = FedAvg(**QUIET).start(grid, model(0), rounds, train_config=config)
    return result.arrays, [number(context.state["momentum"]) for context in grid.contexts.values()]  # type: ignore[arg-type]


def test_each_chain_has_the_state_that_it_would_have_alone() -> None:
    grid = MemoryGrid(both_chains(stateful_app()), 4)
    strategy = MCPSGD(schedule=SCHEDULE, one_message=True, separate_config=lr(0.25))
    strategy.start(grid, model(0), 8, train_config=lr(0.125))
    arrays, momenta = alone(lr(0.125), 8)
    assert bits(strategy.mixed.arrays) == bits(arrays)
    states = [context.state for context in grid.contexts.values()]
    assert [number(state["chain:mixed:momentum"]) for state in states] == momenta  # type: ignore[arg-type]
    for block, rounds in enumerate((5, 3)):
        arrays, momenta = alone(lr(0.25), rounds)
        assert bits(strategy.separate[block].arrays) == bits(arrays)
        assert [number(state[f"chain:separate:{block}:momentum"]) for state in states] == momenta  # type: ignore[arg-type]
    # Eight votes on the mixed chain, and eight evaluations of predictors, which are no chain's.
    assert [int(str(state["chain:mixed:judged"]["count"])) for state in states] == [8, 8, 8, 8]
    assert [int(str(state["judged"]["count"])) for state in states] == [8, 8, 8, 8]
    assert {name for state in states for name in state} == {
        *(
            f"chain:{chain}:{name}"
            for chain in ("mixed", "separate:0", "separate:1")
            for name in ("momentum", "judged")
        ),
        "judged",
    }


# --- The app ----------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("flower_identity")


def context_of() -> Context:
    return Context(1, 2, {"partition-id": 0}, RecordDict(), {})


def order(*, report_loss: bool = True, kind: str = "train") -> Message:
    config = ConfigRecord({"lr": 1.0, "chain": "x"})
    chains = {
        name: RecordDict({"arrays": model(value), "config": config}) for name, value in (("mixed", 1), ("separate", 5))
    }
    losses = {name: RecordDict({"config": ConfigRecord({"chain": name, "judged": 1})}) for name in chains}
    content = write_order(Parts(chains, losses if report_loss else {}), block=1, report_loss=report_loss)
    return Message(content, 2, kind)


def test_the_reply_has_both_chains_and_the_losses_of_the_models_as_they_were_received() -> None:
    players = Players()
    reply = both_chains(plain(players))(order(), context_of())
    parts = read_parts(reply.content)
    assert {chain: number(one.array_records["arrays"]) for chain, one in parts.chains.items()} == {
        "mixed": 2,
        "separate": 6,
    }
    assert {chain: one.metric_records["metrics"]["eval_loss"] for chain, one in parts.losses.items()} == {
        "mixed": 1, "separate": 5
    }  # fmt: skip
    # The model is judged before it is trained, with the config of the evaluation.
    assert [(kind, config) for kind, _, config, _ in players.heard[:2]] == [
        ("evaluate", {"chain": "mixed", "judged": 1}), ("train", {"lr": 1.0, "chain": "x"})
    ]  # fmt: skip
    assert set(reply.content) == {f"{chain}.{name}" for chain in ("mixed", "separate")
                                  for name in ("arrays", "metrics", "loss.metrics")}  # fmt: skip


def test_losses_come_only_if_they_are_asked_for() -> None:
    players = Players()
    reply = both_chains(plain(players))(order(report_loss=False), context_of())
    assert not read_parts(reply.content).losses
    assert [kind for kind, *_ in players.heard] == ["train", "train"]


def test_the_message_that_arrived_is_not_changed() -> None:
    def vandal(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(copy.deepcopy(message), context)
        message.content.clear()
        return reply

    app = ClientApp(mods=[vandal])
    app.train()(Players())
    app.evaluate()(Players())
    asked = order()
    before = copy.deepcopy(asked.content)
    both_chains(app)(asked, context_of())
    assert asked.content == before
    assert asked.metadata.message_type == "train"


def test_any_other_message_is_the_app_s_own() -> None:
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        context.state["seen"] = ConfigRecord({"names": sorted(message.content)})
        return Message(RecordDict(), reply_to=message)

    context = context_of()
    both_chains(app)(Message(RecordDict({"a": ConfigRecord()}), 2, "query"), context)
    assert context.state["seen"]["names"] == ["a"]


def test_functions_and_lifespans_that_are_registered_later_are_the_app_s() -> None:
    app = both_chains(ClientApp())
    app.train()(Players())
    app.evaluate()(Players())
    app.query("whoami")(lambda message, context: Message(RecordDict(), reply_to=message))
    lives: list[str] = []

    @app.lifespan()
    def lifespan(context: Context) -> Iterator[None]:
        lives.append("begin")
        yield
        lives.append("end")

    assert app(order(), context_of()).has_content()
    assert app(Message(RecordDict(), 2, "query.whoami"), context_of()).has_content()
    assert lives == ["begin", "end"] * 5


def test_it_wraps_once_and_only_a_client_app() -> None:
    app = both_chains(ClientApp())
    assert isinstance(app, ClientApp)
    assert both_chains(app) is app
    with pytest.raises(InputError, match="both_chains takes a ClientApp"):
        both_chains(Players())  # type: ignore[arg-type]


def test_an_error_of_one_chain_is_the_answer_to_the_message() -> None:
    def refuse(message: Message, context: Context, call_next: Any) -> Message:
        if number(message.content.array_records["arrays"]) == 5:
            return Message(Error(7, "not this one"), reply_to=message)
        reply: Message = call_next(message, context)
        return reply

    app = ClientApp()
    app.train(mods=[refuse])(Players())
    app.evaluate()(Players())
    asked = order()
    reply = both_chains(app)(asked, context_of())
    assert (reply.error.code, reply.error.reason) == (7, "not this one")
    assert reply.metadata.reply_to_message_id == asked.metadata.message_id


def test_a_state_stays_whole_if_the_app_raises() -> None:
    context = context_of()
    app = both_chains(plain(Players(fails=lambda node, kind, config: kind == "train")))
    context.state["chain:mixed:a"], context.state["b"] = model(1), model(2)
    before = copy.deepcopy(context.state)
    with pytest.raises(RuntimeError, match="is ill"):
        app(order(report_loss=False), context)
    assert context.state == before


def test_a_record_name_that_two_chains_cannot_have_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"no record may be called 'loss.a'"):
        write_reply(Parts({"mixed": RecordDict({"loss.a": ConfigRecord()})}))


# --- The server, if clients are not as they should be -----------------------------------------------------------------


def test_if_evaluating_fails_the_round_is_trained_and_the_vote_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    players = Players(fails=lambda node, kind, config: kind == "evaluate")
    strategy = MCPSGD(schedule=RoundSchedule(1, 9), one_message=True, **QUIET)
    records: list[FoldedRound] = []
    with caplog.at_level(logging.WARNING):
        strategy.start(MemoryGrid(both_chains(plain(players)), 3), model(0), 3, on_round=records.append)
    assert [(one.chosen, one.attempts) for one in records] == [("mixed", 1)] * 3
    assert "round 1, block 0: no node judged both models" in caplog.text
    assert "round 2, block 0: the mixed chain is folded without a vote" in caplog.text
    assert "the received model could not be evaluated" in caplog.text


def test_a_round_that_is_repeated_loses_no_vote() -> None:
    players = Players()
    failing = [True] * 3
    players.fails = lambda node, kind, config: (
        kind == "train"
        and config["server-round"] == 2
        and config["chain"] == "mixed"
        and bool(failing and failing.pop())
    )
    strategy = MCPSGD(schedule=SCHEDULE, one_message=True, **QUIET)
    records: list[FoldedRound] = []
    grid = MemoryGrid(both_chains(plain(players)), 3)
    strategy.start(grid, model(0), 3, on_round=records.append)
    assert [sent[0].metadata.message_type for sent in grid.sent] == [*["train"] * 4, "evaluate"]
    assert [one.attempts for one in records] == [1, 2, 1]
    assert [sorted(one.losses) for one in records] == [["mixed", "separate"]] * 3
    assert number(records[-1].predictors["day"]) == 2.25


def test_clients_that_are_not_wrapped_are_told_from_ill_ones() -> None:
    def answers_anything(message: Message, context: Context) -> Message:
        content = {"arrays": model(1), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    with pytest.raises(InputError, match=r"answered \['arrays', 'metrics'\].*needs app = both_chains\(app\)"):
        MCPSGD(schedule=SCHEDULE, one_message=True).start(MemoryGrid(answers_anything, 3), model(0), 1)
    with pytest.raises(RunError, match=r"KeyError: 'config'.*both_chains\(app\)"):
        MCPSGD(schedule=SCHEDULE, one_message=True).start(MemoryGrid(plain(Players()), 3), model(0), 1)


def test_arrays_of_any_dtype_travel_together() -> None:
    arrays = ArrayRecord({"a": Array(np.arange(3)), "b": Array(np.array([True, False]))})

    def app(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "eval_loss": 1.0})
        if message.metadata.message_type == "evaluate":
            return Message(RecordDict({"metrics": metrics}), reply_to=message)
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    client = ClientApp()
    client.train()(app)
    client.evaluate()(app)
    result = MCPSGD(schedule=SCHEDULE, one_message=True).start(MemoryGrid(both_chains(client), 3), arrays, 4)
    assert bits(result.predictors["night"]) == bits(arrays)
