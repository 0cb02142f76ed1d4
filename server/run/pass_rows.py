"""What a run of the project's own app says of a round: its line of metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flwr.app import MetricRecord

from perennial.common.wire.chains import CHAINS
from perennial.server.strategies.own.ways import Way
from perennial.server.strategies.record import FoldedRound

if TYPE_CHECKING:
    from perennial.common.task.learning_task import Score


def train_losses(record: FoldedRound) -> dict[str, float]:
    """Return the average loss in training of each chain that was trained."""
    metrics = [one for one in record.train_metrics.values() if isinstance(one, MetricRecord)]
    found = {chain: [one[f"train-loss-{chain}"] for one in metrics if f"train-loss-{chain}" in one] for chain in CHAINS}
    return {chain: float(values[0]) for chain, values in found.items() if values}  # type: ignore[arg-type]


def row_of(record: FoldedRound, way: Way, scores: Sequence[float] | None, score: Score | None = None) -> dict[str, Any]:
    """Return the line of a round for a run of ``way``: what others cost is not its own.

    scores: of each block's predictor, if the round was evaluated; by ``score``, None: they are accuracies.
    """
    slot, account, losses = record.slot, record.account, train_losses(record)
    votes = len(way.shows) > 1
    row = {
        "server-round": slot.server_round,
        "cycle": slot.cycle,
        "block": slot.block,
        "round-in-block": slot.round_in_block,
        "attempts": record.attempts,
        **{f"train-loss-{chain}": losses.get(chain) if chain in way.shows else None for chain in CHAINS},
        **{f"loss-{chain}": record.losses.get(chain) if votes else None for chain in CHAINS},
        "chosen": record.chosen if votes else None,
        "clients-asked": account.asked,
        "clients-answered": account.answered,
        "clients-rejected": account.rejected,
        "accepted": list(account.accepted),
        "rejections": [
            {"node": str(one.node), "clients": list(one.clients), "reason": one.reason} for one in account.rejections
        ],
        "quarantined": [str(node) for node in account.quarantined],
        "bytes-down": sum(size for payer, size in account.bytes_down.items() if payer in way.pays),
        "bytes-up": sum(size for payer, size in account.bytes_up.items() if payer in way.pays),
        "seconds": round(record.seconds, 6),
    }
    if scores is None:
        return row
    measured, mean = [one if math.isfinite(one) else None for one in scores], sum(scores) / len(scores)
    if score is None or score.name == "accuracy":
        return {**row, "accuracy": measured, "mean-accuracy": mean}
    return {**row, "score": score.name, "better": score.better, "scores": measured, "mean-score": mean}
