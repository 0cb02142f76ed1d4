"""Lines of metrics.jsonl made by hand, for runs that are small enough to tell every number."""

from __future__ import annotations

from typing import Any

from perennial.server.report.columns import RunResult
from perennial.server.report.reading import from_records

CONFIG: dict[str, object] = {"strategy": "mc-psgd", "blocks": 2, "cycles": 2, "rounds-per-block": 2, "output": "runs/a"}


def record(server_round: int, blocks: int = 2, rounds_per_block: int = 2, **changes: Any) -> dict[str, Any]:
    """Round `server_round` of a schedule by rounds; `changes` are keys, and a value of `...` removes one."""
    visit, round_in_block = divmod(server_round - 1, rounds_per_block)
    cycle, block = divmod(visit, blocks)
    base: dict[str, Any] = {
        "server-round": server_round,
        "cycle": cycle,
        "block": block,
        "round-in-block": round_in_block,
        "bytes-down": 100,
        "bytes-up": 50,
        "seconds": 0.5,
    }
    changed = base | {key.replace("_", "-"): value for key, value in changes.items()}
    return {key: value for key, value in changed.items() if value is not ...}


# Accuracies of the second block lag behind; round 7 is the best, rounds 5 to 8 are the last cycle.
ACCURACY = {2: [0.5, 0.1], 4: [0.5, 0.3], 5: [0.6, 0.4], 7: [0.8, 0.6], 8: [0.7, 0.5]}
CHOSEN = ["separate", "mixed", "separate", "separate", "mixed", "mixed", "mixed", None]


def eight_rounds() -> list[dict[str, Any]]:
    """Two cycles of two blocks of two rounds, evaluated in five of them."""
    return [
        record(
            number,
            chosen=CHOSEN[number - 1],
            accuracy=ACCURACY.get(number, ...),
            train_loss_mixed=2.0 / number,
            train_loss_separate=None,
        )
        for number in range(1, 9)
    ]


THREE = ["fedavg", "mm-psgd", "mc-psgd"]


def rising(name: str, blocks: int = 2, cycles: int = 2, rounds: int = 3, every: int = 1, **changes: Any) -> RunResult:
    """A run that gets better and better; `changes` are settings of its configuration. Only mc-psgd chooses."""
    config: dict[str, object] = {"strategy": name, "blocks": blocks}
    config |= {key.replace("_", "-"): value for key, value in changes.items()}
    chooses = config["strategy"] == "mc-psgd"
    total = blocks * cycles * rounds
    records = []
    for at in range(total):
        accuracy = [0.1 + 0.5 * at / total + 0.01 * block for block in range(blocks)]
        records.append(
            record(
                at + 1,
                blocks,
                rounds,
                train_loss_mixed=2.0 - at / total,
                train_loss_separate=1.9 - at / total if chooses else None,
                chosen=("mixed", "separate")[at % 2] if chooses else None,
                accuracy=accuracy if at % every == every - 1 else ...,
            )
        )
    return from_records(name, config, records)
