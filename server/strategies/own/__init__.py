"""The algorithms and their neighbours as Flower strategies; chosen once, here, by what the readers need trained."""

from __future__ import annotations

from collections.abc import Sequence

from perennial.common.wire.chains import SEPARATE
from perennial.server.run.readers import Reader
from perennial.server.strategies.own.block_cyclic import BlockCyclic, Observer, ScheduleOver
from perennial.server.strategies.own.neighbours.fedrep import FedRep
from perennial.server.strategies.own.neighbours.ifca import IFCA
from perennial.server.strategies.own.neighbours.optimisers import OwnFedAdam, OwnFedAvgM
from perennial.server.strategies.own.own_mc_psgd import OwnMCPSGD


class OwnFedAvg(BlockCyclic):
    """The mixed chain alone: one model for every block, biased to the block it saw last."""


class OwnMMPSGD(BlockCyclic):
    """MM-PSGD (Algorithm 1): FedAvg's chain, and for each block the average of the models that its rounds gave."""


_NEIGHBOURS: dict[str, type[BlockCyclic]] = {
    "fedavgm": OwnFedAvgM,
    "fedadam": OwnFedAdam,
    "fedrep": FedRep,
    "ifca": IFCA,
}


def strategy_for(readers: Sequence[Reader]) -> type[BlockCyclic]:
    """Return the strategy that trains every chain that ``readers`` read."""
    trains = {reader.trains for reader in readers}
    assert len(trains) == 1, f"readers of one pass must share its training, got {sorted(trains)}"
    if neighbour := readers[0].trains:
        return _NEIGHBOURS[neighbour]
    if any(SEPARATE in reader.chains for reader in readers):
        return OwnMCPSGD
    return OwnFedAvg if all(reader.everywhere for reader in readers) else OwnMMPSGD


__all__ = [
    "IFCA",
    "BlockCyclic",
    "FedRep",
    "Observer",
    "OwnFedAdam",
    "OwnFedAvg",
    "OwnFedAvgM",
    "OwnMCPSGD",
    "OwnMMPSGD",
    "ScheduleOver",
    "strategy_for",
]
