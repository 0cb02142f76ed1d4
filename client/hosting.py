"""What a node hosts: all shards of its own folder, or its share of the clients of a simulated data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flwr.app import UserConfigValue

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data.datasets import Shards
from perennial.common.data.source import DEFAULT_CLASSES, open_folder, open_shards
from perennial.common.task.ready import model_for, open_task


@dataclass(frozen=True)
class Hosted:
    """The clients of a node, their shards, the model that the run trains, and the threads that train it."""

    clients: tuple[int, ...]
    shards: Shards
    model: str
    threads: int


def hosted(node: Mapping[str, UserConfigValue], config: RunConfig) -> Hosted:
    """Return what the node with the configuration ``node`` hosts.

    ``data``: its own folder of shards. Else ``partition-id`` p of ``num-partitions`` P: clients p, p + P, p + 2P, ...
    """
    if "data" in node:
        shards = _opened(str(node["data"]), config)
        clients = shards.clients
    else:
        shards = _opened(None, config)
        place, parts = int(node["partition-id"]), int(node["num-partitions"])
        clients = shards.clients[place::parts]
    if not clients:
        raise InputError(f"node hosts no client: the run has {len(shards.clients)} clients; use at most as many nodes")
    model = model_for(open_task(config.task), config.model, shards.signature)
    return Hosted(clients, shards, model, int(node.get("threads", 1)))


# A process serves one run at a time, and all nodes that it stands for share what it opened.
@lru_cache(maxsize=1)
def _opened(folder: str | None, config: RunConfig) -> Shards:
    """Return the shards of the run: those of the node's own ``folder``, or None: those of the simulated data."""
    if folder is None:
        return open_shards(config)
    shards = open_folder(Path(folder), config)
    _check_fit(shards, config)
    return shards


def _check_fit(shards: Shards, config: RunConfig) -> None:
    """Refuse a run for other examples than the node holds, where the server said what they are."""
    found, asked = ("x".join(map(str, shards.shape)), shards.classes), (config.shape, config.classes or DEFAULT_CLASSES)
    if config.shape and found != asked:
        raise InputError(
            f"the run is for examples of shape {asked[0]} in {asked[1]} classes, the shards here are {found[0]} in "
            f"{found[1]}; start flower-server with --shape {found[0]} --classes {found[1]}"
        )
