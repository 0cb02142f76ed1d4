"""What a node hosts: all shards of its own folder, or its share of the clients of a simulated data set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import AUTO
from perennial.common.data.datasets import Shards
from perennial.common.data.source import DEFAULT_CLASSES, open_folder, open_shards
from perennial.common.task.models import default_for

NodeConfig = tuple[tuple[str, bool | float | int | str], ...]


@dataclass(frozen=True)
class Hosted:
    """The clients of a node, their shards, the model that the run trains, and the threads that train it."""

    clients: tuple[int, ...]
    shards: Shards
    model: str
    threads: int


@lru_cache(maxsize=8)
def hosted(node_config: NodeConfig, config: RunConfig) -> Hosted:
    """Return what the node of ``node_config`` hosts.

    ``data``: its own folder of shards. Else ``partition-id`` p of ``num-partitions`` P: clients p, p + P, p + 2P, ...
    """
    node = dict(node_config)
    if "data" in node:
        shards = open_folder(Path(str(node["data"])), config)
        clients = shards.clients
        _check_fit(shards, config)
    else:
        shards = open_shards(config)
        place, parts = int(node["partition-id"]), int(node["num-partitions"])
        clients = shards.clients[place::parts]
    if not clients:
        raise InputError(f"node hosts no client: the run has {len(shards.clients)} clients; use at most as many nodes")
    model = default_for(shards.shape) if config.model == AUTO else config.model
    return Hosted(clients, shards, model, int(node.get("threads", 1)))


def _check_fit(shards: Shards, config: RunConfig) -> None:
    """Refuse a run for other examples than the node holds, where the server said what they are."""
    found, asked = ("x".join(map(str, shards.shape)), shards.classes), (config.shape, config.classes or DEFAULT_CLASSES)
    if config.shape and found != asked:
        raise InputError(
            f"the run is for examples of shape {asked[0]} in {asked[1]} classes, the shards here are {found[0]} in "
            f"{found[1]}; start flower-server with --shape {found[0]} --classes {found[1]}"
        )
