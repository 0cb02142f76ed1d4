"""The inner strategy's own federated evaluation, of the predictor of a round's block."""

from __future__ import annotations

import copy
import random
from dataclasses import asdict, dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from perennial.common.wire.chains import PREDICTOR
from perennial.server.strategies.grids import NotingGrid, ShowingGrid
from perennial.server.strategies.messages import addressed, nodes_of, place
from perennial.server.strategies.record import FoldedRound
from perennial.server.strategies.trees import Tree


@dataclass(frozen=True)
class _Drawn:
    """Nodes that the strategy drew out of ``shown`` before the predictor of the round was known."""

    server_round: int
    nodes: list[int]
    shown: list[int]


class Judging:
    """Asks ``strategy`` to evaluate predictors."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._drawn: _Drawn | None = None

    def draw(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """Let the strategy draw the nodes of a round whose vote is not in: now, as it would alone."""
        noting = NotingGrid(grid)
        messages = self._strategy.configure_evaluate(server_round, arrays.copy(), copy.deepcopy(config), noting)
        self._drawn = _Drawn(server_round, nodes_of(messages), noting.shown)

    def configure(self, record: FoldedRound, config: ConfigRecord, grid: Grid) -> list[Message]:
        """Return the messages that judge the predictor of a folded round; none if the strategy asks for none."""
        server_round, predictor = record.slot.server_round, record.predictors[record.block_name].copy()
        drawn, self._drawn = self._drawn, None
        if drawn is None or drawn.server_round != server_round:
            messages = list(self._strategy.configure_evaluate(server_round, predictor, config, grid))
        else:
            sender = type(self._strategy).__name__
            state = random.getstate()
            showing = ShowingGrid(grid, drawn.shown, sender)
            late = list(self._strategy.configure_evaluate(server_round, predictor, config, showing))
            random.setstate(state)
            messages = addressed(late, drawn.nodes, sender)
        return [place(message, record.slot, record.block_name, PREDICTOR) for message in messages]

    def state_dict(self) -> Tree | None:
        return None if self._drawn is None else asdict(self._drawn)

    def load_state_dict(self, state: Tree | None) -> None:
        self._drawn = None if state is None else _Drawn(**state)
