"""Configurations side by side."""

from __future__ import annotations

from perennial.server.report.comparison import compare
from perennial.server.report.reading import from_records


def test_compare_sorts_settings_into_shared_and_differing() -> None:
    configs: list[dict[str, object]] = [
        {"strategy": "fedavg", "seed": 0, "output": "a"},
        {"strategy": "mm-psgd", "seed": 0, "output": "b", "decay": 0.5},
    ]
    comparison = compare([from_records(str(config["strategy"]), config, []) for config in configs])
    assert comparison.shared == {"seed": 0}
    assert comparison.differing == {"strategy": ("fedavg", "mm-psgd"), "decay": (None, 0.5)}
