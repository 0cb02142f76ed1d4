"""The updates of one exchange while they arrive: each is read, checked and added to a running sum; its bytes are freed.

The sums are exact, so that the order of arrival changes no bit. Some updates count or not by what the others are; they
wait in a spool. A rule that needs all updates at once (median, trimmed mean, Krum) keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from flwr.app import ArrayRecord, RecordDict

from perennial.common.command.config import RunConfig
from perennial.common.wire.arrays import decode
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import HALF, Layout
from perennial.common.wire.orders import Order
from perennial.common.wire.updates import Update, read_update
from perennial.server.cohort.exchange import weights_of
from perennial.server.cohort.moves import Bound, move
from perennial.server.cohort.spool import Spool
from perennial.server.exact import ExactMean


class Intake:
    """Reads the updates of some chains. A node is known here by the lowest client of its order.

    heads: the models that are trained; sent: the same as they travel, by the key wire-down.
    """

    def __init__(
        self,
        config: RunConfig,
        layout: Layout,
        heads: Mapping[str, ArrayRecord],
        sent: Mapping[str, ArrayRecord],
        bound: Bound | None,
    ) -> None:
        self._config, self._layout, self._bound, self._chains = config, layout, bound, tuple(heads)
        needed = bound is not None or HALF in (config.wire_up, config.wire_down)
        self._heads = {chain: decode(one, layout, chain) for chain, one in heads.items()} if needed else {}
        # What is added to what comes back: to a difference the head; to a model what the head lost on its way down. A
        # model that is rounded in every round would stop where a round moves it by less than the rounding.
        self._missing: dict[str, Vector] = {}
        if config.wire_up == HALF:
            self._missing = self._heads
        elif config.wire_down == HALF:
            arrived = {chain: decode(one, layout, chain, HALF) for chain, one in sent.items()}
            self._missing = {chain: head - arrived[chain] for chain, head in self._heads.items()}
        self._moves: dict[int, dict[str, float]] = {}
        self._means = {chain: ExactMean() for chain in heads}
        # Of the lowest client so far: whole numbers and flags have no mean.
        self._first: tuple[float, Mapping[str, Vector]] = math.inf, {}
        self._spool, self._waiting = Spool(), dict[int, tuple[int, Update]]()

    def read(self, content: RecordDict, order: Order) -> Update:
        """Return the update that answers an order, without its models if they are in the sums, or will be."""
        update, client = read_update(content, order, self._layout, self._chains, self._config.wire_up), order.clients[0]
        if self._missing:
            update = replace(
                update, models={chain: self._whole(chain, model) for chain, model in update.models.items()}
            )
        if self._bound:
            self._moves[client] = {chain: move(model, self._heads[chain]) for chain, model in update.models.items()}
        if self._config.aggregation != "mean":
            return update
        light = replace(update, models={})
        if self._bound is None or self._bound.holds(self._moves[client]):
            self._add(client, update)
        else:
            self._waiting[client] = self._spool.put(update.models), light
        return light

    def far(self, clients: Mapping[int, int]) -> Mapping[int, str]:
        """Return which nodes' updates go too far, and why. clients: the lowest one of each node that answered."""
        if self._bound is None:
            return {}
        return self._bound.far({node: self._moves[client] for node, client in clients.items()})

    def settle(self, clients: Iterable[int]) -> None:
        """Add what waited and counts: the updates of these clients."""
        for client in clients:
            if client in self._waiting:
                number, light = self._waiting.pop(client)
                self._add(client, replace(light, models=self._spool.get(number, self._layout.size)))
        self._spool.close()

    def mean(self, chain: str) -> Vector:
        """Return the mean of the updates that were added."""
        average = self._means[chain].mean()
        return average if self._layout.whole is None else self._layout.settled(average, self._first[1][chain])

    def _whole(self, chain: str, model: Vector) -> Vector:
        return self._layout.settled(self._missing[chain] + model, model)

    def _add(self, client: int, update: Update) -> None:
        (weight,) = weights_of([update.losses], self._config.weighting)
        for chain, model in update.models.items():
            self._means[chain].add(model, weight)
        if self._layout.whole is not None and client < self._first[0]:
            self._first = client, update.models
