"""What a node hosts: all shards of its own folder, or its share of the clients of a simulated data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from common.config import AUTO, RunConfig
from common.data import Shards
from common.errors import InputError
from common.models import default_for
from common.source import open_folder, open_shards

NodeConfig = tuple[tuple[str, bool | float | int | str], ...]


@dataclass(frozen=True)
class Hosted:
    """The clients of a node, their shards, and the model that the run trains."""

    clients: tuple[int, ...]
    shards: Shards
    model: str


@lru_cache(maxsize=8)
def hosted(node_config: NodeConfig, config: RunConfig) -> Hosted:
    """Return what the node of ``node_config`` hosts.

    ``data``: its own folder of shards. Else ``partition-id`` p of ``num-partitions`` P: clients p, p + P, p + 2P, ...
    """
    node = dict(node_config)
    if "data" in node:
        shards = open_folder(Path(str(node["data"])), config)
        clients = shards.clients
    else:
        shards = open_shards(config)
        place, parts = int(node["partition-id"]), int(node["num-partitions"])
        clients = shards.clients[place::parts]
    if not clients:
        raise InputError(f"node hosts no client: the run has {len(shards.clients)} clients; use at most as many nodes")
    return Hosted(clients, shards, default_for(shards.shape) if config.model == AUTO else config.model)
