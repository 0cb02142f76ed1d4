"""Sound inputs, from which the fuzzer starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perennial.common.command.config import RunConfig
from perennial.server.run.checkpoint import RunCheckpoint
from perennial.server.run.metrics import Mark
from tests.conftest import make_data, write_folder


def a_folder(folder: Path) -> Path:
    return write_folder(folder, make_data(2, 2))


def a_checkpoint() -> RunCheckpoint:
    """Return one with all kinds of values that a checkpoint can hold."""
    first, second = (np.full(2, value, np.float32) for value in (0.5, 1.5))
    tree = {
        "config": RunConfig().to_mapping(),
        "strategy": {"trained": {"server_round": 7, "cycle": 1, "block": 0, "round_in_block": 2}, "pending": None,
                     "mixed": {"arrays": first, "rounds": 7}, "separate": [second, first]},
        "readers": [{"0": {"folded": 4, "names": ["w"], "arrays": {"w": second}}}, None],
        "quarantine": {"strikes": {"1": 2}, "until": {"4": 9}},
        "node": 2**65, "seconds": float("nan"),
    }  # fmt: skip
    return RunCheckpoint("5f0c", 7, tree, (Mark(100, 5),))
