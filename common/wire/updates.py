"""Updates and losses: what a node answers to an order.

By the key wire-up models travel as they are, in float32, or as differences in float16: what training has added to the
models that were received. A difference is small, and so loses little; a model would lose what training adds to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, MetricRecord, MetricRecordValues, RecordDict

from perennial.common.wire.arrays import decode, encode
from perennial.common.wire.chains import CHAINS, MIXED, SEPARATE, Vector
from perennial.common.wire.layout import FLOAT, Layout
from perennial.common.wire.orders import Order
from perennial.common.wire.protocol import loss, record_of, whole


@dataclass(frozen=True)
class Losses:
    """The mean over a node's clients of their average losses; NaN for a chain that was not judged."""

    num_clients: int
    num_examples: int
    mixed: float = math.nan
    separate: float = math.nan


@dataclass(frozen=True)
class Update:
    """What a node trained. models: the mean over its clients by chain; losses: of the received models, where asked."""

    models: Mapping[str, Vector]
    train_losses: Mapping[str, float]
    losses: Losses


def write_update(
    update: Update, layout: Layout, wire: str = FLOAT, received: Mapping[str, Vector] | None = None
) -> RecordDict:
    """Return an update as records. received: the models of the order, by chain, for ``wire`` float16."""
    trained = {f"train-loss-{chain}": value for chain, value in update.train_losses.items()}
    sent = {
        chain: model if wire == FLOAT or received is None else layout.settled(model - received[chain], model)
        for chain, model in update.models.items()
    }
    models = {chain: encode(vector, layout, wire) for chain, vector in sent.items()}
    return RecordDict({**models, "update": MetricRecord({**_metrics(update.losses), **trained})})


def read_update(content: RecordDict, order: Order, layout: Layout, chains: Sequence[str], wire: str = FLOAT) -> Update:
    """Return the update that answers ``order``, checked: names, shapes, dtypes, finite, plausible counts.

    Its models are differences if ``wire`` is float16.
    """
    metrics = record_of(content, "update", MetricRecord)
    models = {chain: decode(record_of(content, chain, ArrayRecord), layout, chain, wire) for chain in chains}
    train_losses = {chain: loss(metrics, f"train-loss-{chain}") for chain in chains}
    return Update(models, train_losses, _losses(metrics, order, chains if order.report_loss else ()))


def write_losses(losses: Losses) -> RecordDict:
    return RecordDict({"losses": MetricRecord(_metrics(losses))})


def read_losses(content: RecordDict, order: Order) -> Losses:
    return _losses(record_of(content, "losses", MetricRecord), order, CHAINS)


def _metrics(losses: Losses) -> dict[str, MetricRecordValues]:
    judged = {f"loss-{MIXED}": losses.mixed, f"loss-{SEPARATE}": losses.separate}
    return {
        "num-clients": losses.num_clients,
        "num-examples": losses.num_examples,
        **{key: value for key, value in judged.items() if not math.isnan(value)},
    }


def _losses(metrics: MetricRecord, order: Order, chains: Sequence[str]) -> Losses:
    num_clients = whole(metrics, "num-clients", 1, len(order.clients))
    num_examples = whole(metrics, "num-examples", num_clients)
    return Losses(num_clients, num_examples, **{chain: loss(metrics, f"loss-{chain}") for chain in chains})
