"""One pass of training: what it leaves, and how it goes on after an interruption at any instant."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from torch import nn

from perennial.client.app import app
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, RunError
from perennial.server.predict.loading import load_predictor
from perennial.server.report.quantities import best
from perennial.server.report.reading import read_all
from perennial.server.run.checkpoint import Checkpoints
from perennial.server.run.folder import RunFolder
from perennial.server.run.pass_folders import held
from perennial.server.run.prepare import Pass, Run, prepare
from perennial.server.run.training import train
from tests.conftest import make_data, read_metrics, read_predictors, write_folder
from tests.server.conftest import FakeGrid

pytestmark = pytest.mark.usefixtures("flower_identity")


class Interrupted(Exception):
    """Stands for whatever may end a process."""


class RealNodes(FakeGrid):
    """Two nodes that run the real ClientApp in this process. before: called before each answer, may raise."""

    run_config: dict[str, Any]
    before: Callable[[Message], None]

    def _answer(self, message: Message) -> Any:
        self.before(message)
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": node, "num-partitions": 2}, RecordDict(), self.run_config)
        return app(message, context).content


def real_nodes(run: Pass, before: Callable[[Message], None] = lambda message: None) -> RealNodes:
    grid = RealNodes({0: (), 1: ()})
    grid.run_config, grid.before = run.config.to_mapping(), before
    return grid


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Pass]:
    folder = write_folder(tmp_path / "data", make_data(2, 4))

    def made(name: str, **keys: Any) -> Pass:
        plain = {"model": "linear", "engine": "loop", "cycles": 2, "rounds_per_block": 2, "lr_mixed": 0.3}
        config = RunConfig(data=str(folder), participation=0.75, **{**plain, **keys})
        return prepare([Run(config, RunFolder(tmp_path / name))])

    return made


def same_results(one: Path, other: Path) -> bool:
    models = [read_predictors(run) for run in (one, other)]
    return read_metrics(one) == read_metrics(other) and all(
        (a[name] == b[name]).all() for a, b in zip(*models, strict=True) for name in a
    )


@pytest.mark.parametrize("strategy", ["mm-psgd", "mc-psgd"])
def test_a_run_that_is_interrupted_at_any_message_resumes_to_the_same_end(
    make_run: Callable[..., Pass], strategy: str
) -> None:
    whole = make_run("whole", strategy=strategy)
    count = [0]

    def counting(message: Message) -> None:
        count[0] += 1

    train(whole, real_nodes(whole, counting), nodes=2)
    for fatal in range(3, count[0] + 1, 3):
        run = make_run(f"cut-{fatal}", strategy=strategy)
        seen = [0]

        def failing(message: Message, seen: list[int] = seen, fatal: int = fatal) -> None:
            seen[0] += 1
            if seen[0] == fatal:
                raise Interrupted

        with pytest.raises(Interrupted):
            train(run, real_nodes(run, failing), nodes=2, eager=False)
        assert not run.folder.is_complete()
        train(run, real_nodes(run), nodes=2, resume=True, eager=False)
        assert same_results(run.folder.path, whole.folder.path)


def test_an_interruption_after_a_row_was_written_does_not_write_it_twice(make_run: Callable[..., Pass]) -> None:
    """The round is in the metrics, but not yet in the state that the next one starts from."""

    class Stop:
        def round_done(self, record: Any, accuracies: Any, schedule: Any) -> None:
            if record.slot.server_round == 5:
                raise Interrupted

    whole, run = make_run("whole"), make_run("cut")
    train(whole, real_nodes(whole), nodes=2)
    with pytest.raises(Interrupted):
        train(run, real_nodes(run), nodes=2, progress=Stop())
    train(run, real_nodes(run), nodes=2, resume=True)
    assert same_results(run.folder.path, whole.folder.path)


def test_several_runs_of_one_pass_resume_together(make_run: Callable[..., Pass]) -> None:
    def prepared(place: str) -> Pass:
        made = [make_run(f"{place}/{name}", strategy=name) for name in ("mc-psgd", "mm-psgd", "fedavg")]
        return prepare([run for one in made for run in one.runs])

    whole, cut = prepared("whole"), prepared("cut")
    train(whole, real_nodes(whole), nodes=2)
    seen = [0]

    def failing(message: Message) -> None:
        seen[0] += 1
        if seen[0] == 12:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(cut, real_nodes(cut, failing), nodes=2)
    train(cut, real_nodes(cut), nodes=2, resume=True)
    assert all(same_results(a.folder.path, b.folder.path) for a, b in zip(cut.runs, whole.runs, strict=True))


def test_resume_without_any_checkpoint_begins_at_the_beginning(make_run: Callable[..., Pass]) -> None:
    whole, fresh = make_run("whole"), make_run("fresh")
    train(whole, real_nodes(whole), nodes=2)
    train(fresh, real_nodes(fresh), nodes=2, resume=True)
    assert same_results(fresh.folder.path, whole.folder.path)


def test_resume_refuses_another_configuration_and_damaged_checkpoints(make_run: Callable[..., Pass]) -> None:
    run = make_run("run")
    train(run, real_nodes(run), nodes=2)
    other = make_run("run", seed=5)
    with pytest.raises(InputError, match="--resume: the checkpoint has seed = 0, this run 5"):
        train(other, real_nodes(other), nodes=2, resume=True)
    for path in run.folder.checkpoints.glob("*.json"):
        path.write_text("{}")
    with pytest.raises(RunError, match=r"no checkpoint in .* is whole; start anew"):
        train(run, real_nodes(run), nodes=2, resume=True)


def test_resume_of_a_run_that_is_done_waits_for_nobody(make_run: Callable[..., Pass]) -> None:
    run = make_run("run")
    train(run, real_nodes(run), nodes=2)
    before = run.folder.manifest.read_bytes()

    def unexpected(message: Message) -> None:
        raise AssertionError("a run that is done asks nobody")

    train(run, real_nodes(run, unexpected), nodes=2, resume=True)
    assert run.folder.manifest.read_bytes() == before


def test_resume_refuses_a_model_of_another_size(make_run: Callable[..., Pass]) -> None:
    run = make_run("run")
    train(run, real_nodes(run), nodes=2)
    run.folder.manifest.unlink()
    smaller = replace(run, network=nn.Linear(2, 1))
    with pytest.raises(InputError, match="the run to go on from has another model: no array 'weight'"):
        train(smaller, real_nodes(run), nodes=2, resume=True)


def test_a_finished_run_has_everything_the_design_names(make_run: Callable[..., Pass]) -> None:
    run = make_run("run", eval_every=2)
    train(run, real_nodes(run), nodes=2)
    path = run.folder.path
    assert {entry.name for entry in path.iterdir()} == {
        "config.yaml", "initial.safetensors", "metrics.jsonl", "checkpoint", "predictors", "versions",
    }  # fmt: skip
    rows = read_metrics(path, times=True)
    assert [row["server-round"] for row in rows] == list(range(1, 9))
    assert [("accuracy" in row) for row in rows] == [False, True] * 4
    assert all(row["seconds"] > 0 for row in rows)
    assert rows[-1]["mean-accuracy"] == pytest.approx(np.mean(rows[-1]["accuracy"]))
    manifest = json.loads(run.folder.manifest.read_text())
    assert (manifest["format"], manifest["score"], manifest["scores"]) == (2, "accuracy", rows[-1]["accuracy"])
    assert (manifest["strategy"], manifest["folded"], manifest["slot"]["server-round"]) == ("mc-psgd", [4, 4], 8)
    assert {row["run"] for row in rows} == {manifest["run"]}


def test_predictors_are_published_while_they_ripen_and_can_be_loaded(make_run: Callable[..., Pass]) -> None:
    run = make_run("run", eval_every=2, rounds_per_block=8, cycles=1)
    path, seen = run.folder.path, []

    class Look:
        def round_done(self, record: Any, accuracies: Any, schedule: Any) -> None:
            versions = sorted(int(one.name) for one in (path / "versions").glob("[0-9]*"))
            seen.append((record.slot.server_round, versions))

    train(run, real_nodes(run), nodes=2, eager=False, progress=Look())
    # Each evaluated round is there when the next one is over; the last few are kept, and the run's last round is final.
    assert seen[2] == (3, [1])
    assert seen[-1] == (16, [3, 4, 5, 6, 7])
    assert sorted(int(one.name) for one in (path / "versions").glob("[0-9]*")) == [4, 5, 6, 7, 8]
    assert load_predictor(path, block="1").version == 8
    assert load_predictor(path, block="1", version=6).manifest["slot"]["server-round"] == 12
    assert load_predictor(path, block="0").manifest["folded"] == [8, 8]


def test_a_server_publishes_every_few_minutes_at_most(make_run: Callable[..., Pass]) -> None:
    run = make_run("run", eval_every=1)
    train(run, real_nodes(run), nodes=2)
    assert [one.name for one in (run.folder.path / "versions").iterdir()] == ["1"]


def test_damaged_predictors_are_written_again_from_the_checkpoint(make_run: Callable[..., Pass]) -> None:
    run = make_run("run")
    train(run, real_nodes(run), nodes=2)
    path = run.folder.path / "predictors" / "block-1.safetensors"
    before = path.read_bytes()
    path.write_bytes(before[:100])
    train(run, real_nodes(run), nodes=2, resume=True)
    assert path.read_bytes() == before
    assert run.folder.is_whole()


@pytest.mark.parametrize("key", ["strategy", "readers", "quarantine", "generators"])
def test_a_state_that_somebody_else_wrote_is_refused_in_one_line(make_run: Callable[..., Pass], key: str) -> None:
    run = make_run("run")
    train(run, real_nodes(run), nodes=2)
    run.folder.manifest.unlink()
    saved = Checkpoints(run.folder.checkpoints).latest()
    assert saved is not None
    Checkpoints(run.folder.checkpoints).save(replace(saved, tree={**saved.tree, key: {"odd": [1]}}))
    with pytest.raises(RunError, match=r"the state in .* cannot be used \(.*\); start anew, into another folder"):
        train(run, real_nodes(run), nodes=2, resume=True)


def test_a_second_process_is_told_who_holds_the_folder(make_run: Callable[..., Pass]) -> None:
    run = make_run("run")
    with held(run.runs), pytest.raises(InputError, match="is held by process"), held(run.runs):
        pass


def test_a_run_learns_and_is_judged_by_its_task(make_run: Callable[..., Pass]) -> None:
    run = make_run("run", task="regression", strategy="mm-psgd", lr_mixed=0.1)
    train(run, real_nodes(run), nodes=2)
    tests = [run.shards.test(block) for block in range(2)]
    errors = [
        float(np.abs(test.x[0].reshape(-1, 6) @ model["fc.weight"].T[:, 0] + model["fc.bias"] - test.y).mean())
        for test, model in zip(tests, read_predictors(run.folder.path), strict=True)
        if test is not None and test.y is not None
    ]
    row = read_metrics(run.folder.path)[-1]
    assert (row["score"], row["better"]) == ("absolute error", "lower")
    assert row["scores"] == pytest.approx(errors, rel=1e-5)
    assert "accuracy" not in row
    (result,) = read_all(run.folder.path)
    means = [one["mean-score"] for one in read_metrics(run.folder.path) if "mean-score" in one]
    assert result.scale.label == "absolute error"
    assert best(result.evaluated) == min(means) < max(means)


def test_bad_input_is_found_before_anything_is_written(tmp_path: Path, make_run: Callable[..., Pass]) -> None:
    with pytest.raises(InputError, match=r"2 blocks, the clock has 3 \(a, b, c\)"):
        make_run("run", clock="a: 00:00-08:00, b: 08:00-16:00, c: 16:00-00:00")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reaction", ["warn", "stop"])
def test_a_chain_that_diverges_is_said_when_it_happens(
    make_run: Callable[..., Pass], warned: pytest.LogCaptureFixture, reaction: str
) -> None:
    run = make_run("run", strategy="mm-psgd", lr_mixed=1e6, on_divergence=reaction)
    if reaction == "stop":
        with pytest.raises(RunError, match=r"the mixed chain has diverged .* lower lr-mixed; the run is stopped"):
            train(run, real_nodes(run), nodes=2)
    else:
        train(run, real_nodes(run), nodes=2)
        (said,) = [message for message in warned.messages if "diverged" in message]
        assert said.startswith("the mixed chain has diverged since round 1: its loss is ")
        assert said.endswith("; lower lr-mixed; the run goes on, by on-divergence")
    assert len(read_metrics(run.folder.path)) == (1 if reaction == "stop" else 8)
