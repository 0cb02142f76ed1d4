"""Versions whose content can be told from what they say of themselves.

As a program: waits for a line on standard input, then publishes until it is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perennial.common.cycle.schedule import Slot
from perennial.common.data.examples import Signature
from perennial.server.predict.loading import Predictor
from perennial.server.predict.publishing import ModelSpec, Publication, publish
from perennial.server.predict.versions import numbers

CLOCK = "day: 08:00-20:00, night: 20:00-08:00"
BY_CLOCK = {"clock": CLOCK, "timezone": "Europe/Berlin"}
BY_ROUNDS = {"clock": "", "timezone": "UTC", "cycles": 2, "rounds-per-block": 5}
CONFIG = {"strategy": "mc-psgd", "lr-mixed": 0.01}


def arrays(server_round: int, block: int, size: int = 10) -> dict[str, Any]:
    weight = np.full((size, 2), server_round + block / 8, np.float32)
    return {"fc.weight": weight, "fc.bias": weight[0].copy(), "count": np.array(server_round)}


def publication(server_round: int, *, size: int = 10, **changes: Any) -> Publication:
    keys: Mapping[str, Any] = {
        "run": "5f0c",
        "slot": Slot(server_round, 0, 1, 3),
        "strategy": "mc-psgd",
        "blocks": ("day", "night"),
        "predictors": (arrays(server_round, 0, size), arrays(server_round, 1, size)),
        "folded": (server_round, server_round),
        "schedule": BY_CLOCK,
        "config": CONFIG,
        "scores": (0.5, 0.75),
        **changes,
    }
    return Publication(**keys)


def learnt(server_round: int, **changes: Any) -> Publication:
    """Return a publication with a network: for an example x, each of its four outputs is ``answer``."""
    predictors = tuple(
        {"fc.weight": np.full((4, 3), server_round + block / 8, np.float32), "fc.bias": np.zeros(4, np.float32)}
        for block in range(2)
    )
    signature = Signature.labelled((3,), 4)
    return publication(
        server_round,
        **{"predictors": predictors, "model": ModelSpec.of("classification", "linear", signature), **changes},
    )


def answer(x: Any, version: int, block: str) -> Any:
    """Return the outputs of ``learnt`` for examples (n, 3), if versions are numbered as rounds are."""
    scale = version + ("day", "night").index(block) / 8
    return np.repeat(np.asarray(x, np.float64).sum(axis=1, keepdims=True) * scale, 4, axis=1)


def is_whole(predictor: Predictor) -> bool:
    """Tell whether the arrays are all of the round and the block that the predictor names."""
    server_round, block = (
        predictor.manifest["slot"]["server-round"],
        predictor.manifest["blocks"].index(predictor.block),
    )
    expected = arrays(server_round, block, len(predictor.arrays["fc.weight"]))
    return set(expected) == set(predictor.arrays) and all(
        np.array_equal(expected[name], array) for name, array in predictor.arrays.items()
    )


def main(folder: Path, *, with_network: bool) -> None:
    print("ready", flush=True)
    # The end of the input instead of a line: the test is over, and nobody would end this.
    told = bool(sys.stdin.readline())
    while told:
        # Rounds are numbered as versions are, so that a reader can tell that none was changed.
        number = (numbers(folder) or [0])[-1] + 1
        publish(folder, learnt(number) if with_network else publication(number, size=20_000), kept=3)


if __name__ == "__main__":
    main(Path(sys.argv[1]), with_network="--with-network" in sys.argv)
