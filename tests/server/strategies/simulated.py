"""MM-PSGD and MC-PSGD in Flower's own simulation: prints what they did as JSON, for a test to compare.

Replies come in any order there, node ids are random, and other threads draw from Python's ``random``.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.simulation import run_simulation

from perennial import MCPSGD, MMPSGD, RoundSchedule, both_chains
from perennial.common.command.errors import RunError
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.grids import AroundGrid, ShowingGrid
from perennial.server.strategies.record import FoldedRound
from tests.server.strategies.quickstart import initial_arrays, make_app

NODES = 6
SCHEDULE = RoundSchedule(["day", "night"], rounds_per_block=2, cycles=2)
# Flower counts the nodes before it waits for all of them.
HALF = {"fraction_train": 0.5, "min_train_nodes": 3, "min_available_nodes": NODES, "fraction_evaluate": 0.0}
CONFIG, SEPARATE = {"lr": 0.02}, {"lr": 0.05}


class Recording(AroundGrid):
    """Notes every message that is sent, and the replies in the order in which they came."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.exchanges: list[tuple[list[Message], list[Message]]] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        self.exchanges.append((sent, copy.deepcopy(replies)))
        return replies


def numbers(arrays: ArrayRecord) -> list[float]:
    return [*map(float, arrays["fc.weight"].numpy()), float(arrays["fc.bias"].numpy())]


def started(strategy: BlockStrategy, grid: Grid) -> tuple[dict[str, Any], Recording]:
    rounds: list[FoldedRound] = []
    recording = Recording(grid)
    result = strategy.start(
        recording, initial_arrays(), train_config=ConfigRecord(dict(CONFIG)), on_round=rounds.append
    )
    found = {
        "cohorts": [partitions(replies) for sent, replies in recording.exchanges
                    if sent[0].metadata.message_type == "train"],
        "blocks": [one.slot.block for one in rounds],
        "chosen": [one.chosen for one in rounds],
        "predictors": {name: numbers(arrays) for name, arrays in result.predictors.items()},
    }  # fmt: skip
    return found, recording


def partitions(replies: list[Message]) -> list[int]:
    """Return who trained the mixed chain, in the order of their replies; all chains come from the same nodes."""
    by_chain: dict[str, list[int]] = {}
    for reply in replies:
        records = reply.content.metric_records
        chains = {"mixed": records["mixed.metrics"]} if "mixed.metrics" in records else {"": records["metrics"]}
        for chain, metrics in chains.items():
            by_chain.setdefault(chain, []).append(int(str(metrics["partition"])))
    (found,) = by_chain.values()
    return list(dict.fromkeys(found))


def replayed(grid: Grid) -> dict[str, bool]:
    """Run MC-PSGD around FedAdam; then give the replies, in their order, to fresh strategies."""
    chains: dict[str, list[ArrayRecord]] = {"mixed": [], "0": [], "1": []}

    def note(record: FoldedRound) -> None:
        chains["mixed"].append(strategy.mixed.arrays)
        chains[str(record.slot.block)].append(strategy.separate[record.slot.block].arrays)

    strategy = MCPSGD(FedAdam(**HALF, eta=0.05), schedule=SCHEDULE, separate_config=ConfigRecord(dict(SEPARATE)))
    recording = Recording(grid)
    strategy.start(recording, initial_arrays(), train_config=ConfigRecord(dict(CONFIG)), on_round=note)
    again: dict[str, list[ArrayRecord]] = {"mixed": [], "0": [], "1": []}
    fresh = {name: FedAdam(**HALF, eta=0.05) for name in again}
    heads = {name: initial_arrays() for name in again}
    for sent, replies in recording.exchanges:
        if sent[0].metadata.message_type != "train":
            continue
        chain_of = {one.metadata.message_id: str(one.content["config"]["chain"]) for one in sent}
        block = str(sent[0].content["config"]["block"])
        for chain, name in (("mixed", "mixed"), ("separate", block)):
            count = len(again[name]) + 1
            nodes = list(grid.get_node_ids())
            fresh[name].configure_train(count, heads[name], ConfigRecord(), ShowingGrid(grid, nodes, "fresh"))
            mine = [one for one in replies if chain_of[one.metadata.reply_to_message_id] == chain]
            arrays, _ = fresh[name].aggregate_train(count, mine)
            assert arrays is not None
            heads[name] = arrays
            again[name].append(arrays)
    return {name: again[name] == chains[name] and len(again[name]) > 1 for name in again}


def refused(strategy: BlockStrategy, grid: Grid) -> str:
    """Return how a run ends whose clients raise an error."""
    try:
        strategy.start(grid, initial_arrays(), train_config=ConfigRecord({"lr": "much"}))
    except RunError as error:
        return str(error)
    return ""


def main() -> None:
    server, found = ServerApp(), {}

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        separate = ConfigRecord(dict(SEPARATE))
        found["mm"], _ = started(MMPSGD(schedule=SCHEDULE, averaging="mean", **HALF), grid)
        found["mc"], _ = started(MCPSGD(FedAvg(**HALF), schedule=SCHEDULE, separate_config=separate), grid)
        everyone = {**HALF, "fraction_train": 1.0, "min_train_nodes": NODES}
        found["one message"], recording = started(
            MCPSGD(schedule=SCHEDULE, separate_config=separate, one_message=True, **everyone), grid
        )
        found["exchanges"] = [sent[0].metadata.message_type for sent, _ in recording.exchanges]
        found["replayed"] = replayed(grid)
        found["ill"] = refused(MMPSGD(schedule=SCHEDULE, round_attempts=1, **HALF), grid)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, both_chains(make_app()), NODES, backend_config=resources)  # type: ignore[arg-type]
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
