"""What is fuzzed: each target makes one mutated input and hands it to a reader, which may refuse it in its own words.

A target returns whether the reader took the input; anything raised but the reader's own error is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.messages import Protocol
from tests.fuzz.settings import Config, Experiments
from tests.fuzz.stored import Checkpoints, Shards

TARGETS: dict[str, Callable[[Path], Any]] = {
    "protocol": Protocol,
    "config": Config,
    "experiment": Experiments,
    "shards": Shards,
    "checkpoint": Checkpoints,
}
