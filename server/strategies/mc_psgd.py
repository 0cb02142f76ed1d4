"""MC-PSGD (Algorithm 2) around any Flower strategy."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE
from perennial.server.strategies.base import BlockStrategy, checked_config
from perennial.server.strategies.carriers import Apart, Together
from perennial.server.strategies.chain import Chain
from perennial.server.strategies.grids import NotingGrid
from perennial.server.strategies.inner import inner_of, one_for_each, weight_key
from perennial.server.strategies.messages import RecordNames, answerers, nodes_of, slotted
from perennial.server.strategies.trees import Tree
from perennial.server.strategies.voting import VOTE_WEIGHTS, Electorate, Poll, Trainers, Verdict, winner

LOG = logging.getLogger("flwr")


class MCPSGD(BlockStrategy):
    """Multi-Chain Parallel SGD: as MM-PSGD, but each block also has a chain of its own; the clients' losses choose.

    strategy, schedule, averaging, decay, round_attempts: as in MMPSGD. A copy of the strategy is made for each block.
    separate: a function without arguments that makes such a strategy, if yours cannot be copied.
    separate_config: the keys of ``train_config`` that differ for the separate chains, such as the learning rate.
    loss_key: the metric of the clients' ``evaluate`` that decides the vote. vote_weights: "examples" weighs the nodes
    as Flower does; with "nodes" each node counts alike, as in the paper. one_message: both chains travel in one
    message, to clients that have ``app = both_chains(app)``; the vote on a round then comes with the next replies.

    >>> from flwr.app import ConfigRecord
    >>> from perennial import MCPSGD, RoundSchedule
    >>> from perennial.example import example_arrays, example_grid
    >>> strategy = MCPSGD(
    ...     schedule=RoundSchedule(blocks=["day", "night"], rounds_per_block=2, cycles=2),
    ...     separate_config=ConfigRecord({"lr": 0.2}),
    ... )
    >>> rounds = []
    >>> result = strategy.start(
    ...     grid=example_grid(),
    ...     initial_arrays=example_arrays(),
    ...     train_config=ConfigRecord({"lr": 0.1}),
    ...     on_round=rounds.append,
    ... )
    >>> len(rounds), {one.chosen for one in rounds} <= {"mixed", "separate"}
    (8, True)
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        *,
        schedule: Schedule,
        separate: Callable[[], Strategy] | None = None,
        separate_config: ConfigRecord | None = None,
        averaging: str = "exponential",
        decay: float = 0.5,
        loss_key: str = "eval_loss",
        vote_weights: str = "examples",
        one_message: bool = False,
        round_attempts: int | None = 10,
        **fedavg: Any,
    ) -> None:
        super().__init__(inner_of(strategy, fedavg, "MCPSGD"), schedule, averaging, decay, round_attempts)
        self.settings |= {"loss_key": loss_key, "vote_weights": vote_weights, "one_message": one_message}
        if vote_weights not in VOTE_WEIGHTS:
            raise InputError(f"vote_weights must be one of {', '.join(VOTE_WEIGHTS)}, got {shown(vote_weights)}")
        if not isinstance(loss_key, str) or not loss_key:
            raise InputError(f"loss_key must be the name of a metric, got {shown(loss_key)}")
        checked_config("separate_config", ConfigRecord() if separate_config is None else separate_config)
        inner = self.mixed.strategy
        # w_bar of every block.
        self.separate = [Chain(SEPARATE, one) for one in one_for_each(schedule.names, inner, separate)]
        self._separate_config = copy.deepcopy(dict(separate_config or {}))
        self._one_message = one_message
        self.carrier = Together() if one_message else Apart()
        weigh_by = weight_key(inner) if vote_weights == "examples" else None
        # Who votes, if not the nodes that trained.
        self.electorate: Electorate = Trainers(self.carrier, loss_key, weigh_by)
        if one_message:
            self.advice = "are the clients well, and have they app = both_chains(app)?"
        self._names = RecordNames()
        self._grid: Grid

    def begin(
        self, initial: ArrayRecord, train_config: ConfigRecord, evaluate_config: ConfigRecord, timeout: float
    ) -> None:
        """Start every chain as the initial model (line 2)."""
        super().begin(initial, train_config, evaluate_config, timeout)
        for chain in self.separate:
            chain.begin(initial, ConfigRecord({**train_config, **self._separate_config}))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send x_bar and w_bar of the round's block (lines 13 to 16) to the round's nodes, which train both (line 18).

        arrays, config: of the mixed chain.
        """
        slot, self._grid = self.check_running(), grid
        noting = NotingGrid(grid)
        mixed = self.mixed.configure(arrays, config, noting)
        nodes = nodes_of(mixed)
        separate = self.separate[slot.block].configure_for(nodes, noting.shown, grid)
        self.rounds.note(server_round, nodes=tuple(nodes))
        if mixed:
            self._names = RecordNames.of(mixed[0].content, arrays)
        both = {MIXED: mixed, SEPARATE: separate}
        return self.carrier.pack(both, slot, self.block_name(slot), self._judged_on_arrival())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new x_bar."""
        # Line 5: m, the current block.
        slot = self.check_running()
        parted = self.unpacked(server_round, replies)
        mixed, separate = parted.chains.get(MIXED, []), parted.chains.get(SEPARATE, [])
        answered = tuple(answerers([*mixed, *separate]))
        if not answered:
            return None, None
        if self.pending:
            # Line 9 of the round before: this round's nodes judged its models when they got them.
            losses = self.electorate.count(parted.losses)
            self._choose_and_fold(losses or self._vote(self.evaluate_config.record, self._grid, attempts=1))
        # Line 6: the block-mixed model, by the strategy inside.
        moved, metrics = self.mixed.aggregate(mixed)
        if not moved:
            return None, metrics
        # Line 7: the block-separate model, by the block's own strategy; without replies it stays as it is.
        _, separate_metrics = self.separate[slot.block].aggregate(separate)
        self.rounds.note(server_round, answered=answered, train_metrics={MIXED: metrics, SEPARATE: separate_metrics})
        self.pending = slot
        return self.mixed.arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Hold the vote, then let the strategy inside judge the predictor of the round's block, if it asks for that."""
        self.check_running()
        if self.pending and not self._one_message:
            self.settle(config, grid)
        if not self.rounds.is_folded(server_round):
            self.judging.draw(server_round, arrays, config, grid)
            return []
        return self.judging.configure(self.rounds[server_round], config, grid)

    def settle(self, config: ConfigRecord, grid: Grid) -> None:
        """Broadcast both models, receive their losses (lines 8 and 9), and fold the better one (lines 10 to 12)."""
        self._choose_and_fold(self._vote(config, grid, attempts=2))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        self.check_running()
        return self.mixed.strategy.aggregate_evaluate(server_round, replies)

    # --- The lines of the paper that follow a broadcast ---------------------------------------------------------------

    def _vote(self, config: ConfigRecord, grid: Grid, attempts: int) -> Mapping[str, float] | None:
        """Return the average local losses of both models; None: nobody judged both."""
        slot = self._pending()
        # Line 8: broadcast x_bar and y_bar.
        models = {MIXED: self.mixed.arrays, SEPARATE: self.separate[slot.block].arrays}
        trained = self.rounds[slot.server_round].answered
        poll = Poll(slot, self.block_name(slot), models, trained, self._names, config, self.timeout)
        # Line 9: receive the local losses.
        verdict: Verdict = self.electorate.ask(poll, grid, attempts)
        self.rounds.charge(slot.server_round, verdict.account)
        return verdict.losses

    def _choose_and_fold(self, losses: Mapping[str, float] | None) -> None:
        slot = self._pending()
        if losses is None:
            LOG.warning("%s: the mixed chain is folded without a vote", self._where(slot))
        # Line 10: u_bar, the model with the smaller average loss.
        chosen = MIXED if losses is None else winner(losses, self._where(slot))
        model = self.mixed.arrays if chosen == MIXED else self.separate[slot.block].arrays
        self.rounds.note(slot.server_round, losses=losses or {}, chosen=chosen)
        # Lines 11 and 12: fold it into the predictor of m; r is counted by the predictors.
        self.fold(slot, model)
        self.pending = None

    # --- Helpers ------------------------------------------------------------------------------------------------------

    def _judged_on_arrival(self) -> dict[str, RecordDict]:
        """Return the config records with which the models of the pending round are judged before they are trained."""
        if self.pending is None:
            return {}
        slot, content = self.pending, RecordDict({self._names.config: self.evaluate_config.record})
        return {chain: slotted(content, slot, self.block_name(slot), chain) for chain in CHAINS}

    def block_models(self) -> list[ArrayRecord]:
        return [chain.arrays for chain in self.separate]

    def _pending(self) -> Slot:
        assert self.pending is not None, "no round waits for a vote"
        return self.pending

    def _where(self, slot: Slot) -> str:
        return f"round {slot.server_round}, block {self.block_name(slot)}"

    def state_dict(self) -> Tree:
        separate = [chain.state_dict() for chain in self.separate]
        return {**super().state_dict(), "separate": separate, "names": asdict(self._names)}

    def load_state_dict(self, state: Tree) -> None:
        super().load_state_dict(state)
        for chain, one in zip(self.separate, state["separate"], strict=True):
            chain.load_state_dict(one)
        self._names = RecordNames(**state["names"])
