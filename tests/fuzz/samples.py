"""Sound inputs, from which the fuzzer starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perennial.common.command.config import RunConfig
from perennial.common.cycle.schedule import Slot
from perennial.server.cohort.exchange import Rejection
from perennial.server.psgd import Chains, Predictors
from perennial.server.run.checkpoint import Checkpoint
from perennial.server.run.state import RoundRecord, RunState
from tests.conftest import make_data, write_folder


def a_folder(folder: Path) -> Path:
    return write_folder(folder, make_data(2, 2))


def a_checkpoint() -> Checkpoint:
    """Return one with all that a checkpoint can hold: a round that awaits its selection, and nodes that sit out."""
    slot = Slot(7, 1, 0, 2)
    record = RoundRecord(
        slot,
        attempts=2,
        clients_asked=40,
        clients_answered=38,
        rejections=(Rejection(2**62 + 5, (3, 4), "worker died", False),),
        quarantined=(9,),
        bytes_down={"mixed": 5},
        bytes_up={"mixed": 6},
        train_losses={"mixed": 0.1},
        seconds=0.25,
    )
    first, second = (np.full(2, value, np.float32) for value in (0.5, 1.5))
    state = RunState(slot, Chains(first, (second, first)), (Predictors((first, second), (4, 3)),), record)
    quarantine = {"after": 3, "rounds": 10, "strikes": {"1": 2}, "until": {"4": 9}}
    return Checkpoint(state, RunConfig().to_mapping(), (100,), quarantine, "2026-03-27T12:00:00+00:00")
