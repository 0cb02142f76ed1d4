"""A run that is small enough to tell every number by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perennial.common.command.config import RunConfig
from perennial.server.report.reading import from_records
from perennial.simulation.paper.series import Series, from_result
from tests.server.report.records import record

A_SERIES = Callable[..., Series]


@pytest.fixture
def a_series() -> A_SERIES:
    """Make a series of 2 blocks of 2 rounds in 2 cycles, evaluated each round, from mean accuracies in %."""

    def make(name: str = "mm-psgd", means: tuple[float, ...] = (10, 20, 30, 40, 50, 60, 50, 60), **keys: Any) -> Series:
        spread, chosen = keys.pop("spread", 10.0), keys.pop("chosen", ())
        options = {"strategy": "mm-psgd", "blocks": 2, "cycles": 2, "rounds_per_block": 2, **keys}
        config = RunConfig(**options)
        records = [
            record(
                at,
                bytes_down=400_000,
                bytes_up=600_000,
                chosen=chosen[at - 1] if chosen else None,
                accuracy=[(mean - spread) / 100, (mean + spread) / 100],
            )
            for at, mean in enumerate(means, 1)
        ]
        key = {"local_iterations": "local-iterations", "participation": "participation"}
        swept = next((key[name] for name in keys if name in key), "")
        return from_result(from_records(name, config.to_mapping(), records), swept)

    return make
