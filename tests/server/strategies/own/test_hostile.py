"""Nodes that are registered and hostile, or broken for good: what they cost a run is bounded, and said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, RecordDict

from perennial.common.command.errors import RunError
from perennial.common.wire.updates import Losses, Update, write_update
from perennial.server import options
from tests.server.conftest import LAYOUT, FakeGrid, Outcome, Sent

RunStrategy = Callable[..., Outcome]
Answer = RecordDict | Error | None
HONEST = {11: (0,), 12: (1,), 13: (2,), 14: (3,)}
GREEDY = 66
DEPLOYED = {"round_attempts": 0, "strategy": "fedavg"}


def greedy_grid(answer: Answer) -> FakeGrid:
    """Four nodes of one client each, and one that claims a hundred clients and always answers alike."""
    claims = {GREEDY: tuple(range(4, 104))}
    return FakeGrid({**HONEST, **claims}, sabotage=lambda sent, honest: answer if sent.node == GREEDY else honest)


@pytest.mark.parametrize(
    "answer",
    [
        Error(2, "RuntimeError: no"),
        Error(6, "the reply is refused: it has 100000000 bytes, the order leaves room for 5000000"),
        None,
        RecordDict({}),
    ],
    ids=["errors", "100 MB", "silence", "nonsense"],
)
def test_a_node_that_claims_100_clients_and_never_helps_sits_out(
    run_strategy: RunStrategy, warned: pytest.LogCaptureFixture, answer: Answer
) -> None:
    outcome = run_strategy(greedy_grid(answer), cycles=10, **DEPLOYED)
    attempts = [record.attempts for record in outcome.watcher.records]
    # Three strikes in the first round; ten rounds without it, then three more, and twenty rounds without it.
    assert attempts == [4] + 10 * [1] + [4] + 20 * [1] + [4] + 7 * [1]
    said = [message for message in warned.messages if "sits out" in message]
    assert len(said) == 3
    assert said[0].startswith("the node of client 4 sits out until round 11: 3 rejections in a row, the last: ")


def test_a_node_that_claims_other_clients_after_each_error_sits_out_too(run_strategy: RunStrategy) -> None:
    grid = greedy_grid(Error(2, "RuntimeError: no"))
    grid.sabotage = lambda sent, honest: move_on(grid) if sent.node == GREEDY else honest

    def move_on(grid: FakeGrid) -> Error:
        grid.nodes[GREEDY] = tuple(client + 100 for client in grid.nodes[GREEDY])
        return Error(2, "RuntimeError: no")

    outcome = run_strategy(grid, **DEPLOYED)
    assert [record.attempts for record in outcome.watcher.records] == [4] + 7 * [1]


def test_a_node_that_went_offline_has_one_strike_a_round(run_strategy: RunStrategy) -> None:
    grid = greedy_grid(Error(5, "the node went offline before it had answered"))
    outcome = run_strategy(grid, min_replies=0.01, **DEPLOYED)
    asked = [sent.order.server_round for sent in grid.sent if sent.node == GREEDY]
    assert asked == [1, 2, 3]
    assert all(outcome.folded)


def thrown(value: float) -> RecordDict:
    models = {"mixed": np.full(2, value, np.float32)}
    return write_update(Update(models, {"mixed": 0.5}, Losses(1, 10)), LAYOUT)


@pytest.mark.parametrize("value", [1e30, -1e30, 1e4])
def test_one_update_far_outside_is_rejected_and_said(run_strategy: RunStrategy, value: float) -> None:
    grid = FakeGrid(dict(HONEST), sabotage=lambda sent, honest: thrown(value) if sent.node == 12 else honest)
    outcome = run_strategy(grid, max_update_norm=options.run_config(options.parse([])).max_update_norm, **DEPLOYED)
    assert outcome.predictors == run_strategy(FakeGrid(dict(HONEST)), strategy="fedavg").predictors
    (rejection,) = outcome.watcher.records[0].account.rejections
    assert rejection.reason.startswith("mixed: the update moves the model by ")
    assert rejection.reason.endswith("the others by 1.41421: far outside, by max-update-norm auto")
    assert rejection.bad


def test_without_a_bound_as_in_simulation_it_counts(run_strategy: RunStrategy) -> None:
    grid = FakeGrid(dict(HONEST), sabotage=lambda sent, honest: thrown(1e30) if sent.node == 12 else honest)
    assert run_strategy(grid, strategy="fedavg").predictors[0] > 1e29


def test_of_two_nodes_the_earlier_rounds_tell_which_one_is_wrong(run_strategy: RunStrategy) -> None:
    def late(sent: Sent, honest: RecordDict) -> RecordDict:
        return thrown(1e30) if sent.node == 12 and sent.order.server_round > 2 else honest

    grid = FakeGrid(dict(HONEST), sabotage=lambda sent, honest: leave(grid) if sent.node == 14 else late(sent, honest))

    def leave(grid: FakeGrid) -> Error:
        grid.nodes.pop(13, None)
        grid.nodes.pop(14, None)
        return Error(5, "gone")

    outcome = run_strategy(grid, max_update_norm=float("-inf"), min_replies=0.1, **DEPLOYED)
    assert all(abs(one) < 100 for one in outcome.predictors)


def test_an_honest_run_does_not_change_by_a_bit(run_strategy: RunStrategy) -> None:
    rng = np.random.default_rng(3)
    moves = {node: rng.normal(scale=10.0 ** rng.uniform(-1, 1), size=2) for node in HONEST}

    def sabotage(sent: Sent, honest: RecordDict) -> RecordDict:
        models = {
            chain: (model + moves[sent.node] / sent.order.server_round**3).astype(np.float32)
            for chain, model in sent.models.items()
        }
        losses = (1.0, 2.0) if sent.order.report_loss else ()
        return write_update(Update(models, dict.fromkeys(models, 0.5), Losses(1, 10, *losses)), LAYOUT)

    def trained(**keys: Any) -> list[bytes]:
        grid = FakeGrid(
            dict(HONEST), sabotage=lambda sent, honest: sabotage(sent, honest) if "mixed" in honest else honest
        )
        outcome = run_strategy(grid, strategy="mc-psgd", cycles=10, **keys)
        models = (*outcome.reader.models, outcome.strategy.mixed.arrays)
        return [array.numpy().tobytes() for model in models for array in model.values()]

    assert trained(max_update_norm=float("-inf")) == trained()


def test_errors_that_cannot_change_by_being_repeated_are_not_repeated(run_strategy: RunStrategy) -> None:
    grid = FakeGrid(
        dict(HONEST), sabotage=lambda sent, honest: Error(2, f"InputError: client {sent.order.clients} has NaN")
    )
    with pytest.raises(RunError) as error:
        run_strategy(grid, strategy="fedavg")
    assert str(error.value).startswith(
        "round 1: 0 of 4 clients answered (node error 2: InputError: client (0,) has NaN)"
    )
    assert "the same when it was repeated" in str(error.value)
    assert len(grid.sent) == 2 * len(HONEST)


def test_errors_that_differ_are_repeated(run_strategy: RunStrategy) -> None:
    grid = FakeGrid(dict(HONEST), sabotage=lambda sent, honest: Error(2, f"OSError: {len(grid.sent)} files"))
    with pytest.raises(RunError, match="5 times in a row"):
        run_strategy(grid, strategy="fedavg", round_attempts=5)
