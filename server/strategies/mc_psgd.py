"""MC-PSGD (Algorithm 2) around any Flower strategy."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.schedule import Schedule, Slot
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE
from perennial.server.strategies.base import BlockStrategy, checked_config
from perennial.server.strategies.carriers import Apart, Carrier, Together
from perennial.server.strategies.chain import Chain
from perennial.server.strategies.grids import NotingGrid
from perennial.server.strategies.inner import inner_of, one_for_each, weight_key
from perennial.server.strategies.messages import RecordNames, answerers, first_error, nodes_of, place, slotted
from perennial.server.strategies.trees import Tree
from perennial.server.strategies.voting import VOTE_WEIGHTS, average_losses, ballots, winner

LOG = logging.getLogger("flwr")


class MCPSGD(BlockStrategy):
    """Multi-Chain Parallel SGD: MM-PSGD, and for each block a chain of its own; the clients' losses choose.

    strategy, schedule, averaging, decay, round_attempts: as in MMPSGD. The strategy is copied for each block, now;
    separate: a function without arguments that makes one instead, for a strategy that cannot be copied.
    separate_config: what of ``train_config`` is different for the separate chains, such as the learning rate.
    loss_key: the metric of the clients' ``evaluate`` by which they choose; vote_weights: "examples" weighs the nodes as
    Flower does, "nodes" each alike, as the paper. one_message: both chains travel in one message, to clients that
    have ``app = both_chains(app)``; the vote on a round then comes with the replies of the next one.

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
        round_attempts: int = 10,
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
        self._loss_key = loss_key
        self._weight_key = weight_key(inner) if vote_weights == "examples" else None
        self._one_message = one_message
        self._carrier: Carrier = Together() if one_message else Apart()
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
        messages = self._placed({MIXED: mixed, SEPARATE: separate}, slot)
        return self._carrier.pack(messages, slot.block, self._judged_on_arrival())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the new x_bar."""
        # Line 5: m, the current block.
        slot = self.check_running()
        parted = self._carrier.unpack(replies)
        mixed, separate = parted.chains.get(MIXED, []), parted.chains.get(SEPARATE, [])
        answered = tuple(answerers([*mixed, *separate]))
        if not answered:
            return None, None
        if self.pending:
            # Line 9 of the round before: this round's nodes judged its models when they got them.
            self._choose_and_fold(self._counted(parted.losses) or self._vote(self.evaluate_config.record, self._grid))
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
        self._choose_and_fold(self._vote(config, grid) or self._vote(config, grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        self.check_running()
        return self.mixed.strategy.aggregate_evaluate(server_round, replies)

    # --- The lines of the paper that follow a broadcast ---------------------------------------------------------------

    def _vote(self, config: ConfigRecord, grid: Grid) -> dict[str, float] | None:
        """Return the average local losses of both models over the nodes that trained them; None: nobody judged both."""
        slot = self._pending()
        # Line 8: broadcast x_bar and y_bar.
        models = {MIXED: self.mixed.arrays, SEPARATE: self.separate[slot.block].arrays}
        asked = self._placed(ballots(models, self.rounds[slot.server_round].answered, self._names, config), slot)
        replies = list(grid.send_and_receive(self._carrier.pack(asked, slot.block), timeout=self.timeout))
        # Line 9: receive the local losses.
        losses = self._counted(self._carrier.unpack(replies).chains)
        if losses is None:
            problem = first_error(replies) or f"{len(replies)} replies"
            LOG.warning("%s: no node judged both models (%s)", self._where(slot), problem)
        return losses

    def _counted(self, replies: Mapping[str, Sequence[Message]]) -> dict[str, float] | None:
        return average_losses(replies, self._loss_key, self._weight_key)

    def _choose_and_fold(self, losses: dict[str, float] | None) -> None:
        slot = self._pending()
        if losses is None:
            LOG.warning("%s: the mixed chain is folded without a vote", self._where(slot))
        # Line 10: u_bar, the model with the smaller average loss.
        chosen = MIXED if losses is None else winner(losses, self._where(slot))
        model = self.mixed.arrays if chosen == MIXED else self.separate[slot.block].arrays
        # Lines 11 and 12: fold it into the predictor of m; r is counted by the predictors.
        self.predictors.fold(self.block_name(slot), model)
        self.rounds.note(
            slot.server_round,
            losses=losses or {},
            chosen=chosen,
            predictors=self.predictors.taken(),
            folded=dict(self.predictors.folded),
        )
        self.pending = None

    # --- Helpers ------------------------------------------------------------------------------------------------------

    def _placed(self, messages: Mapping[str, Sequence[Message]], slot: Slot) -> dict[str, list[Message]]:
        name = self.block_name(slot)
        return {chain: [place(one, slot, name, chain) for one in listed] for chain, listed in messages.items()}

    def _judged_on_arrival(self) -> dict[str, RecordDict]:
        """Return the config records with which the models of the pending round are judged before they are trained."""
        if self.pending is None:
            return {}
        slot, content = self.pending, RecordDict({self._names.config: self.evaluate_config.record})
        return {chain: slotted(content, slot, self.block_name(slot), chain) for chain in CHAINS}

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
