"""blockcyclic: A Flower Baseline. Algorithms 1 and 2 around FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from perennial import MCPSGD, MMPSGD, RoundSchedule


def build(keys: Mapping[str, Any]) -> MMPSGD | MCPSGD:
    """Return MM-PSGD or MC-PSGD; the mixed chain of both is FedAvg's."""
    schedule = RoundSchedule(
        keys["num-blocks"], keys["rounds-per-block"], keys["num-cycles"]
    )
    inner = FedAvg(fraction_train=keys["fraction-train"], fraction_evaluate=0.0)
    fold = {"averaging": keys["averaging"], "decay": keys["decay"]}
    if keys["algorithm"] == "mm-psgd":
        return MMPSGD(inner, schedule=schedule, **fold)
    if keys["algorithm"] != "mc-psgd":
        raise ValueError(
            f"algorithm must be mm-psgd or mc-psgd, got {keys['algorithm']!r}"
        )
    separate = ConfigRecord({"lr": keys["lr-separate"]})
    return MCPSGD(inner, schedule=schedule, separate_config=separate, **fold)
