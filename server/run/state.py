"""The state of a run between rounds, and the record that each round leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from perennial.common.cycle.schedule import Slot
from perennial.common.wire.chains import CHAINS, Vector
from perennial.server.cohort.exchange import Rejection
from perennial.server.psgd import Chains, Predictors

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round, over all its attempts. Bytes are by chain; losses are of the models it produced.

    accepted: the clients whose models are in the chains, sorted. rejections: the last of each node, since a round may
    be attempted for days.
    """

    slot: Slot
    attempts: int = 0
    clients_asked: int = 0
    clients_answered: int = 0
    clients_rejected: int = 0
    accepted: tuple[int, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    quarantined: tuple[int, ...] = ()
    bytes_down: Sizes = field(default_factory=dict)
    bytes_up: Sizes = field(default_factory=dict)
    train_losses: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    chosen: str | None = None
    seconds: float = 0.0

    def row(self, chains: tuple[str, ...]) -> dict[str, Any]:
        """Return the line of metrics.jsonl for a reader of ``chains``: what the others cost is not its own."""
        mine = set(chains)
        return {
            "server-round": self.slot.server_round,
            "cycle": self.slot.cycle,
            "block": self.slot.block,
            "round-in-block": self.slot.round_in_block,
            "attempts": self.attempts,
            **{f"train-loss-{chain}": self.train_losses.get(chain) if chain in mine else None for chain in CHAINS},
            **{f"loss-{chain}": self.losses.get(chain) if len(mine) > 1 else None for chain in CHAINS},
            "chosen": self.chosen if len(mine) > 1 else None,
            "clients-asked": self.clients_asked,
            "clients-answered": self.clients_answered,
            "clients-rejected": self.clients_rejected,
            "accepted": list(self.accepted),
            "rejections": [
                {"node": str(r.node), "clients": list(r.clients), "reason": r.reason} for r in self.rejections
            ],
            "quarantined": [str(node) for node in self.quarantined],
            "bytes-down": sum(size for chain, size in self.bytes_down.items() if chain in mine),
            "bytes-up": sum(size for chain, size in self.bytes_up.items() if chain in mine),
            "seconds": round(self.seconds, 6),
        }

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads, for the checkpoint of a round that awaits its selection."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RoundRecord:
        rejections = tuple(Rejection(**{**one, "clients": tuple(one["clients"])}) for one in value["rejections"])
        lists = {"quarantined": tuple(value["quarantined"]), "accepted": tuple(value.get("accepted", ()))}
        return cls(**{**value, "slot": Slot(**value["slot"]), "rejections": rejections, **lists})


@dataclass(frozen=True)
class RunState:
    """Everything that the next round depends on.

    slot: of the last round that is in the chains. predictors: one set a reader. pending: the record of that round while
    it waits for the losses that choose between its chains. memory: what a neighbour keeps beside them, by name.
    """

    slot: Slot | None
    chains: Chains
    predictors: tuple[Predictors, ...]
    pending: RoundRecord | None = None
    memory: Mapping[str, Vector] = field(default_factory=dict)
