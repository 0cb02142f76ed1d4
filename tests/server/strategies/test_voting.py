"""The vote by itself: averages, weights, ties, and losses that are none."""

from __future__ import annotations

import logging
import math
import random
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from perennial.common.command.errors import InputError, RunError
from perennial.server.strategies.messages import RecordNames
from perennial.server.strategies.voting import average_losses, ballots, winner
from tests.server.strategies.players import model

pytestmark = pytest.mark.usefixtures("flower_identity")
WHERE = "round 3, block night"


def reply(node: int, metrics: dict[str, Any] | None) -> Message:
    asked = Message(RecordDict(), node, "evaluate")
    content = Error(1, "ill") if metrics is None else RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content, reply_to=asked)


def replies(*losses: float, weights: list[float] | None = None) -> list[Message]:
    examples = weights or [1] * len(losses)
    pairs = enumerate(zip(losses, examples, strict=True))
    return [reply(node, {"eval_loss": loss, "num-examples": weight}) for node, (loss, weight) in pairs]


def count(mixed: list[Message], separate: list[Message], key: str | None = "num-examples") -> Any:
    return average_losses({"mixed": mixed, "separate": separate}, "eval_loss", key)


def test_losses_are_weighed_by_examples_or_each_node_alike() -> None:
    mixed, separate = replies(1.0, 4.0, weights=[3, 1]), replies(2.0, 2.0, weights=[3, 1])
    assert count(mixed, separate) == {"mixed": 1.75, "separate": 2.0}
    assert count(mixed, separate, None) == {"mixed": 2.5, "separate": 2.0}


def test_a_node_counts_only_if_it_answered_for_both_chains() -> None:
    mixed = [*replies(1.0, 2.0), reply(2, {"eval_loss": 100.0, "num-examples": 1}), reply(3, None)]
    separate = [reply(3, {"eval_loss": 0.0, "num-examples": 1}), reply(2, None), *replies(5.0, 6.0)]
    assert count(mixed, separate) == {"mixed": 1.5, "separate": 5.5}
    assert count(mixed[2:], separate[:2]) is None
    assert count([], []) is None


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(1, 10**6)), min_size=1, max_size=20), st.randoms())
def test_the_order_of_replies_changes_nothing(votes: list[tuple[float, int]], rng: random.Random) -> None:
    losses, weights = zip(*votes, strict=True)
    mixed = replies(*losses, weights=list(weights))
    shuffled = rng.sample(mixed, len(mixed))
    found = count(mixed, mixed)
    assert found == count(shuffled, shuffled)
    assert found["mixed"] == pytest.approx(
        sum(loss * weight for loss, weight in votes) / sum(weights), rel=1e-9, abs=1e-3
    )


def test_a_node_without_examples_has_no_say() -> None:
    assert count(replies(math.nan, 1.0, weights=[0, 2]), replies(0.0, 3.0)) == {"mixed": 1.0, "separate": 3.0}
    with pytest.raises(InputError, match="the vote has no weight: 'num-examples' is 0 on all of its 2 nodes"):
        count(replies(1.0, 1.0, weights=[0, 0]), replies(0.0, 3.0))


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match="node 0: 'num-examples' must be a number of at least 0"):
        count(replies(1.0, weights=[weight]), replies(1.0))


def test_replies_without_the_key_are_an_error_that_names_the_keys_that_are_there() -> None:
    others = [reply(0, {"loss": 1.0, "acc": 0.5, "num-examples": 3})]
    with pytest.raises(InputError, match=r"no number 'eval_loss' \(it has 'loss', 'acc', 'num-examples'\)"):
        count(others, others)
    with pytest.raises(InputError, match=r"no number 'num-examples' \(it has 'eval_loss'\).*vote_weights"):
        count([reply(0, {"eval_loss": 1.0})], [reply(0, {"eval_loss": 1.0})])
    with pytest.raises(InputError, match=r"no number 'eval_loss' \(it is \[1.0\]\)"):
        count([reply(0, {"eval_loss": [1.0], "num-examples": 1})], replies(1.0))


@pytest.mark.parametrize(
    ("mixed", "separate", "chosen"),
    [(1.0, 0.5, "separate"), (0.5, 1.0, "mixed"), (1.0, 1.0, "mixed"), (-3.0, -4.0, "separate"), (-4.0, 0, "mixed")],
)
def test_the_smaller_loss_wins_and_a_tie_goes_to_the_mixed_chain(mixed: float, separate: float, chosen: str) -> None:
    assert winner({"mixed": mixed, "separate": separate}, WHERE) == chosen


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_makes_its_chain_lose_with_a_warning(
    bad: float, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert winner(count(replies(bad, 1.0), replies(9.0, 9.0)), WHERE) == "separate"
        assert winner(count(replies(9.0, 9.0), replies(1.0, bad)), WHERE) == "mixed"
    warned = [record.getMessage() for record in caplog.records]
    assert [text.startswith(f"{WHERE}: the loss of the {chain} chain is") for text, chain in
            zip(warned, ("mixed", "separate"), strict=True)] == [True, True]  # fmt: skip


def test_losses_that_are_not_finite_on_both_chains_are_an_error_that_names_round_and_block() -> None:
    with pytest.raises(RunError, match="round 3, block night: the losses of both chains are not finite"):
        winner(count(replies(math.inf, -math.inf), replies(math.nan, 0.0)), WHERE)


def test_ballots_have_the_record_names_of_train_messages_and_the_config_in_copies() -> None:
    config = ConfigRecord({"batch": [1]})
    models = {"mixed": model(1), "separate": model(2)}
    asked = ballots(models, [5, 6], RecordNames("weights", "settings"), config)
    assert {chain: [one.metadata.dst_node_id for one in listed] for chain, listed in asked.items()} == {
        "mixed": [5, 6], "separate": [5, 6]
    }  # fmt: skip
    for chain, listed in asked.items():
        for message in listed:
            assert message.metadata.message_type == "evaluate"
            assert dict(message.content) == {"weights": models[chain], "settings": config}
            assert message.content["settings"]["batch"] is not config["batch"]
