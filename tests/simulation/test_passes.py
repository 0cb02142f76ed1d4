"""What is trained, what is skipped and what is refused, where folders hold runs already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import Slot
from perennial.server.predict.publishing import Publication, publish, settle
from perennial.server.run.checkpoint import Checkpoints, RunCheckpoint
from perennial.server.run.metrics import Mark
from perennial.server.run.prepare import Pass, Run
from perennial.simulation import experiment
from perennial.simulation import passes as running

Passes = list[list[str]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Passes:
    """The passes that would be trained, by run; and a file to run in the working directory."""
    monkeypatch.chdir(tmp_path)
    passes: Passes = []

    def record(waiting: Sequence[Pass], *, resume: bool, verbose: bool) -> None:
        passes.extend([run.config.strategy for run in one.runs] for one in waiting)

    monkeypatch.setattr(running, "_run_passes", record)
    return passes


def run(strategies: str, *, resume: bool = True, overwrite: bool = False) -> None:
    Path("file.yaml").write_text(f"strategy: {strategies}\nmodel: linear\n")
    running.run_experiment(experiment.load(Path("file.yaml"), []), resume=resume, overwrite=overwrite, verbose=False)


def leave(strategies: str, *, manifest: bool, checkpoint_of: str) -> None:
    """Leave the folders of a pass behind: done, or broken off with its checkpoint."""
    Path("file.yaml").write_text(f"strategy: {strategies}\nmodel: linear\n")
    for one in experiment.load(Path("file.yaml"), []).passes[0]:
        made = running.prepare([Run(one.config, running.RunFolder(Path("runs/file") / one.name))])
        made.folder.start(made.config, b"")
        made.folder.metrics.write_text("{}\n")
        if manifest:
            publish(made.folder.path, Publication("5f0c", Slot(1, 0, 0, 0), one.name, ("0",), (None,), (0,), {}, {}))
            settle(made.folder.path)
        if one.name == checkpoint_of:
            Checkpoints(made.folder.checkpoints).save(RunCheckpoint("5f0c", 1, {}, (Mark(), Mark())))


def test_what_is_done_is_skipped_and_what_was_added_to_it_is_trained_alone(trained: Passes) -> None:
    leave("[fedavg, mm-psgd]", manifest=True, checkpoint_of="mm-psgd")
    run("[fedavg, mm-psgd]")
    assert trained == []
    run("[fedavg, mm-psgd, mc-psgd]")
    assert trained == [["mc-psgd"]]
    assert Path("runs/file/mm-psgd/metrics.jsonl").read_text() == "{}\n"


def test_a_pass_that_is_not_done_is_not_started_anew_with_another_run(trained: Passes) -> None:
    leave("[fedavg, mm-psgd]", manifest=False, checkpoint_of="mm-psgd")
    with pytest.raises(InputError, match="mm-psgd was trained without mc-psgd, and together they would start anew"):
        run("[fedavg, mm-psgd, mc-psgd]")
    run("[fedavg, mm-psgd, mc-psgd]", resume=False, overwrite=True)
    assert trained == [["mc-psgd", "mm-psgd", "fedavg"]]


def test_a_pass_that_was_killed_before_its_first_checkpoint_starts_again(trained: Passes) -> None:
    leave("[fedavg, mm-psgd]", manifest=False, checkpoint_of="")
    run("[fedavg, mm-psgd]")
    assert trained == [["mm-psgd", "fedavg"]]


def test_an_output_that_cannot_be_made_is_refused_before_anything_starts(trained: Passes) -> None:
    Path("file").write_text("")
    Path("file.yaml").write_text("strategy: fedavg\n")
    with pytest.raises(InputError, match="file/x"):
        running.run_experiment(
            experiment.load(Path("file.yaml"), ["output=file/x"]), resume=False, overwrite=False, verbose=False
        )
    assert trained == []
