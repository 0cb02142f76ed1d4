"""What the folder of a library's run says of it: its line of metrics.jsonl for each round, and its config.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from perennial.common.cycle.schedule import Schedule
from perennial.common.wire.chains import CHAINS
from perennial.server.run.tree import Tree
from perennial.server.strategies.record import FoldedRound

# What reports call the algorithms; a subclass is called by its own name.
_NAMES = {"MMPSGD": "mm-psgd", "MCPSGD": "mc-psgd", "OneModel": "fedavg"}
# How Flower's examples call what a report draws; the first that is there counts.
_TRAIN_LOSSES = ("train_loss", "train-loss", "loss")
_ACCURACIES = ("accuracy", "eval_acc", "eval_accuracy", "eval-accuracy", "acc")


def identity_of(state: Tree, initial: ArrayRecord) -> Tree:
    """Return what a run that goes on must share with its first part, of the state that ``state_dict`` gave."""
    model = {name: f"{array.dtype}{list(array.shape)}" for name, array in initial.items()}
    return {**state["identity"], "inner": state["mixed"]["strategy"]["class"], "model": model}


def config_of(identity: Tree, schedule: Schedule, train_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.yaml, with the keys that reports and manifests know."""
    return {
        "strategy": _NAMES.get(identity["strategy"], identity["strategy"]),
        "inner": identity["inner"],
        **schedule_of_run(schedule),
        "block-names": list(schedule.names),
        **_kebab(identity["settings"]),
        "train-config": {key: one for key, one in train_config.items() if isinstance(one, str | bool | int | float)},
    }


def schedule_of_run(schedule: Schedule) -> dict[str, Any]:
    """Return how rounds or the clock turn into blocks."""
    counted = {key: one for key, one in _kebab(schedule.identity).items() if key != "blocks"}
    return {"blocks": len(schedule.names), **counted, "cycles": schedule.cycles}


def row_of(record: FoldedRound, accuracy: Sequence[float | None]) -> dict[str, Any]:
    """Return the line of a round. accuracy: of each block's predictor, as it was last measured."""
    slot = record.slot
    measured = any(one is not None for one in accuracy)
    return {
        "server-round": slot.server_round,
        "cycle": slot.cycle,
        "block": slot.block,
        "block-name": record.block_name,
        "round-in-block": slot.round_in_block,
        "attempts": record.attempts,
        **{f"train-loss-{chain}": _first(record.train_metrics.get(chain), _TRAIN_LOSSES) for chain in CHAINS},
        **{f"loss-{chain}": _finite(record.losses.get(chain)) for chain in CHAINS},
        "chosen": record.chosen,
        "clients-asked": len(record.nodes),
        "clients-answered": len(record.answered),
        # As text: many readers of JSON have no whole numbers of 64 bits.
        "nodes": list(map(str, record.nodes)),
        "answered": list(map(str, record.answered)),
        "bytes-down": record.bytes_down,
        "bytes-up": record.bytes_up,
        "seconds": round(record.seconds, 6),
        "folded": dict(record.folded),
        **({"accuracy": list(accuracy)} if measured else {}),
        "train-metrics": {chain: _plain(one) for chain, one in record.train_metrics.items()},
        "evaluate-metrics": _plain(record.evaluate_metrics),
        "server-metrics": _plain(record.server_metrics),
    }


def accuracy_of(record: FoldedRound) -> float | None:
    """Return the accuracy of the round's predictor: by ``evaluate_fn``, else by the clients; None: nobody said one."""
    by_server = _first(record.server_metrics, _ACCURACIES)
    found = _first(record.evaluate_metrics, _ACCURACIES) if by_server is None else by_server
    # A percentage, say, is no accuracy that a report could draw.
    return found if found is not None and 0 <= found <= 1 else None


def _first(metrics: MetricRecord | None, keys: Sequence[str]) -> float | None:
    values = [metrics[key] for key in keys if key in metrics] if metrics else []
    return _finite(values[0]) if values and not isinstance(values[0], list) else None


def _finite(value: float | None) -> float | None:
    # JSON has no word for the others.
    return float(value) if value is not None and math.isfinite(value) else None


def _plain(metrics: MetricRecord | None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    return {key: [_number(each) for each in one] if isinstance(one, list) else _number(one)
            for key, one in metrics.items()}  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _kebab(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): one for key, one in mapping.items()}
