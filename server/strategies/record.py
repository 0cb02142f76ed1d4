"""What each round of a run leaves behind, and the rounds that are not over yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from perennial.common.cycle.schedule import Slot
from perennial.server.cohort.account import NOTHING, Account
from perennial.server.strategies.trees import Tree, metric_tree, metrics_of


@dataclass(frozen=True)
class FoldedRound:
    """A round, as ``on_round`` gets it.

    nodes, answered: those that were asked to train in the last attempt, and those that did. train_metrics: what the
    chains' strategies made of the clients' metrics, by chain. losses: each chain's average loss in the vote; empty
    if there was none. chosen: the chain that was folded; None if there is but one. evaluate_metrics, server_metrics: of
    the block's predictor, by the strategy's own federated evaluation and by ``evaluate_fn``. bytes_down, bytes_up: of
    all models that were sent and received. account: what a carrier for cohorts of clients counted. folded: how many
    models each predictor averages.
    """

    slot: Slot
    block_name: str
    attempts: int = 0
    nodes: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    train_metrics: Mapping[str, MetricRecord | None] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    chosen: str | None = None
    evaluate_metrics: MetricRecord | None = None
    server_metrics: MetricRecord | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    account: Account = NOTHING
    predictors: Mapping[str, ArrayRecord] = field(default_factory=dict)
    folded: Mapping[str, int] = field(default_factory=dict)


class OpenRounds:
    """The rounds that are not over, by their numbers: one, or two while a round waits for its vote."""

    def __init__(self) -> None:
        self._rounds: dict[int, FoldedRound] = {}

    def open(self, slot: Slot, block_name: str) -> None:
        self._rounds[slot.server_round] = FoldedRound(slot, block_name)

    def note(self, server_round: int, **changes: Any) -> None:
        self._rounds[server_round] = replace(self._rounds[server_round], **changes)

    def charge(self, server_round: int, account: Account) -> None:
        """Add what an exchange for the round cost and brought."""
        self.note(server_round, account=self[server_round].account.plus(account))

    def __getitem__(self, server_round: int) -> FoldedRound:
        return self._rounds[server_round]

    def is_folded(self, server_round: int) -> bool:
        return bool(self._rounds[server_round].folded)

    def before(self, server_round: int) -> list[Slot]:
        """Return the slots of the earlier rounds that are not over, oldest first."""
        return [one.slot for number, one in sorted(self._rounds.items()) if number < server_round]

    def close(self, server_round: int) -> FoldedRound:
        return self._rounds.pop(server_round)

    def clear(self) -> None:
        self._rounds.clear()

    def state_dict(self) -> list[Tree]:
        """Return the rounds that wait for their vote."""
        return [_tree(one) for one in self._rounds.values()]

    def load_state_dict(self, state: list[Tree]) -> None:
        rounds = [_round(one) for one in state]
        self._rounds = {one.slot.server_round: one for one in rounds}


def _tree(one: FoldedRound) -> Tree:
    kept = {name: getattr(one, name) for name in ("block_name", "attempts", "bytes_down", "bytes_up", "seconds")}
    metrics = {chain: metric_tree(record) for chain, record in one.train_metrics.items()}
    nodes = {"nodes": list(one.nodes), "answered": list(one.answered)}
    return {**kept, **nodes, "slot": asdict(one.slot), "train_metrics": metrics, "account": one.account.state()}


def _round(tree: Tree) -> FoldedRound:
    metrics = {chain: metrics_of(record) for chain, record in tree["train_metrics"].items()}
    lists = {name: tuple(tree[name]) for name in ("nodes", "answered")}
    kept = {"slot": Slot(**tree["slot"]), "train_metrics": metrics, "account": Account.of(tree["account"])}
    return FoldedRound(**{**tree, **lists, **kept})
