"""The trackers of docs/library.md, in the five lines that it gives, against the real packages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perennial import MCPSGD, RoundSchedule
from perennial.example import example_arrays, example_grid
from perennial.server.strategies.record import FoldedRound

PAGE = Path(__file__).resolve().parents[3] / "docs" / "library.md"


def example(name: str) -> dict[str, Any]:
    """Return what the code of a tracker defines."""
    code = re.search(rf"^{name} \(.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert code
    assert sum(map(bool, code[1].splitlines())) == 5
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names


def trained(log: Any) -> list[FoldedRound]:
    """Train four rounds with a tracker; return their records."""
    rounds: list[FoldedRound] = []

    def note(record: FoldedRound) -> None:
        rounds.append(record)
        log(record)

    schedule = RoundSchedule(["day", "night"], rounds_per_block=2, cycles=1)
    MCPSGD(schedule=schedule).start(example_grid(), example_arrays(), on_round=note)
    return rounds


def expected(rounds: list[FoldedRound], block: str, chain: str) -> list[tuple[int, float]]:
    return [(one.slot.server_round, pytest.approx(one.losses[chain])) for one in rounds if one.block_name == block]


def test_tensorboard_has_the_losses_of_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    monkeypatch.chdir(tmp_path)
    names = example("TensorBoard")
    rounds = trained(names["log"])
    names["writer"].close()
    read = EventAccumulator("logs")
    read.Reload()
    for block, chain in (("day", "mixed"), ("night", "separate")):
        found = [(one.step, float(make_ndarray(one.tensor_proto))) for one in read.Tensors(f"{block}/{chain}")]
        assert found == expected(rounds, block, chain)


# Of the packages that it imports, not of what is shown here.
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_losses_of_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A folder of files, which takes no time to be made; and nothing leaves this machine.
    settings = {"ALLOW_FILE_STORE": "true", "TRACKING_URI": (tmp_path / "mlruns").as_uri(), "DISABLE_TELEMETRY": "true"}
    for key, value in settings.items():
        monkeypatch.setenv(f"MLFLOW_{key}", value)
    names = example("MLflow")
    mlflow = names["mlflow"]
    with mlflow.start_run() as run:
        rounds = trained(names["log"])
    client = mlflow.MlflowClient()
    for block, chain in (("day", "mixed"), ("night", "separate")):
        history = client.get_metric_history(run.info.run_id, f"{block}/{chain}")
        assert [(one.step, one.value) for one in history] == expected(rounds, block, chain)
