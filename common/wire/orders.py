"""Orders: what a server asks of a node for one round, to train (`train`) or to judge (`evaluate`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from perennial.common.wire.arrays import decode
from perennial.common.wire.chains import CHAINS, MIXED, Vector
from perennial.common.wire.layout import FLOAT, Layout
from perennial.common.wire.protocol import client_ids, flag, record_of, whole


@dataclass(frozen=True)
class Order:
    """What differs from round to round. report_loss: the answer has the losses of the models as they were sent."""

    server_round: int
    cycle: int
    block: int
    clients: tuple[int, ...]
    report_loss: bool


def write_order(order: Order, models: Mapping[str, ArrayRecord]) -> RecordDict:
    """Return an order with its models by chain, which are encoded once for all nodes."""
    record = ConfigRecord(
        {
            "server-round": order.server_round,
            "cycle": order.cycle,
            "block": order.block,
            "clients": list(order.clients),
            "report-loss": order.report_loss,
        }
    )
    return RecordDict({**models, "order": record})


def read_order(content: RecordDict) -> Order:
    record = record_of(content, "order", ConfigRecord)
    return Order(
        whole(record, "server-round", 1),
        whole(record, "cycle", 0),
        whole(record, "block", 0),
        client_ids(record),
        flag(record, "report-loss"),
    )


def read_models(content: RecordDict, layout: Layout, wire: str = FLOAT) -> dict[str, Vector]:
    """Return the models of an order by chain: both, or one of them; wire: as the key wire-down says."""
    chains = [chain for chain in CHAINS if chain in content] or [MIXED]
    return {chain: decode(record_of(content, chain, ArrayRecord), layout, chain, wire) for chain in chains}
