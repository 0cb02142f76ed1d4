"""Hostile clients against the averages: 20 of 100 send ten times their update backwards, and swap their losses.

    python -m benchmarks.robustness

One client a node, so that median and trimmed mean see clients. Digits in five blocks, client-skew 0. Prints the table
of docs/robustness.md: mean block accuracy of the three algorithms, which read the same chains, with and without attack.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from perennial.common.command.config import RunConfig
from perennial.common.command.console import log_to_console
from perennial.common.command.errors import RunError
from perennial.common.wire.orders import read_order
from perennial.common.wire.seeding import generator
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.training import train
from perennial.simulation.cluster import connected
from perennial.simulation.ray_grid import RayGrid

CLIENTS = 100
SCALE = 10.0
STRATEGIES = ("fedavg", "mm-psgd", "mc-psgd")
SETTING: dict[str, Any] = {
    "data": "digits", "blocks": 5, "labels-per-block": 2, "clients": CLIENTS, "nodes": CLIENTS, "client-skew": 0.0,
    "model": "linear", "cycles": 2, "rounds-per-block": 8, "local-iterations": 10, "batch-size": 8, "lr-mixed": 0.1,
    "lr-separate": 0.1, "eval-every": 8,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("mean", {"aggregation": "mean"}),
    ("mean, max-update-norm 3", {"aggregation": "mean", "max-update-norm": 3.0}),
    ("median", {"aggregation": "median"}),
    ("trimmed-mean", {"aggregation": "trimmed-mean"}),
]


class HostileGrid(RayGrid):
    """Alters the replies of the nodes that host ``hostile`` clients, as those nodes could."""

    hostile: frozenset[int] = frozenset()

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        sent = list(messages)
        for reply in super().stream(sent, timeout=timeout):
            requests = {message.metadata.message_id: message for message in sent}
            yield self._altered(requests[reply.metadata.reply_to_message_id], reply)

    def _altered(self, request: Message, reply: Message) -> Message:
        if request.metadata.message_type == "query" or reply.has_error():
            return reply
        if self.hostile.isdisjoint(read_order(request.content).clients):
            return reply
        return Message(attack(request.content, reply.content), reply_to=request)


def attack(received: RecordDict, answer: RecordDict) -> RecordDict:
    """Return received - 10 (trained - received) for each model, and each chain's loss as the other's."""
    records: dict[str, Any] = dict(answer.items())
    for name, record in answer.items():
        if isinstance(record, ArrayRecord):
            before = received.array_records[name]
            arrays = {key: _reversed(before[key].numpy(), record[key].numpy()) for key in record}
            records[name] = ArrayRecord(arrays)
        elif isinstance(record, MetricRecord) and "loss-separate" in record:
            swapped = {"loss-mixed": record["loss-separate"], "loss-separate": record["loss-mixed"]}
            records[name] = MetricRecord({**record, **swapped})
    return RecordDict(records)


def _reversed(received: Any, trained: Any) -> Array:
    return Array((received - SCALE * (trained - received)).astype(np.float32))


def run(grid: HostileGrid, folder: Path, changes: dict[str, Any], hostile: int, seed: int) -> tuple[list[float], int]:
    """Return the final mean block accuracy of each strategy in percent, and the rounds that were done."""
    chosen = generator(seed, "hostile").choice(CLIENTS, hostile, replace=False)
    grid.hostile = frozenset(chosen.tolist())
    # The strategy that needs both chains comes first: its configuration trains for all.
    configs = [
        RunConfig.from_mapping({**SETTING, **changes, "strategy": name, "seed": seed}) for name in STRATEGIES[::-1]
    ]
    prepared = prepare([Run(config, RunFolder(folder / config.strategy)) for config in configs])
    grid.begin(CLIENTS, configs[0].to_mapping())
    try:
        train(prepared, grid, nodes=CLIENTS, eager=False)
    except RunError as error:
        print(f"stopped: {error}", file=sys.stderr)
    accuracies, rounds = [], 0
    for name in STRATEGIES:
        rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        accuracies.append(100 * next(row["mean-accuracy"] for row in reversed(rows) if "mean-accuracy" in row))
        rounds = rows[-1]["server-round"]
    return accuracies, rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hostile", type=int, default=20, help="hostile clients of 100 (default: 20)")
    parser.add_argument("--labels-per-block", type=int, default=2, help="more make clients differ more (default: 2)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    log_to_console(verbose=False)
    clean: list[float] = []
    print("| average | hostile of 100 | FedAvg | MM-PSGD | MC-PSGD | MC-PSGD against the clean mean |")
    print("|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as folder,
        connected(verbose=False) as cpus,
        closing(HostileGrid(cpus)) as grid,
    ):
        for hostile in (0, options.hostile):
            for name, changes in CASES:
                changes = {**changes, "labels-per-block": options.labels_per_block}
                found, rounds = run(grid, Path(folder) / f"{name}-{hostile}", changes, hostile, options.seed)
                clean = clean or found
                columns = " | ".join(f"{accuracy:.1f} %" for accuracy in found)
                total = SETTING["cycles"] * SETTING["blocks"] * SETTING["rounds-per-block"]
                note = "" if rounds == total else f" (stopped at round {rounds} of {total})"
                print(f"| {name} | {hostile} | {columns} | {found[2] - clean[2]:+.1f} points{note} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
