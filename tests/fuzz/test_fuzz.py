"""Readers of what comes from outside take it or refuse it in their own words; `python -m tests.fuzz` digs on."""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, shown
from perennial.common.data.shards import ShardFolder
from perennial.common.wire.orders import read_order
from perennial.common.wire.protocol import ProtocolError
from perennial.common.wire.updates import read_losses, read_update
from perennial.server.run.checkpoint import load_checkpoint
from perennial.server.run.tree import DamagedError
from perennial.simulation import experiment
from tests.fuzz.messages import CHAINS, LAYOUT, ORDER
from tests.fuzz.targets import TARGETS

KEYS = sorted(RunConfig().to_mapping())
RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
METRICS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.lists(st.floats(), max_size=3)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_taken_or_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        taken = sum(target.once(random.Random(f"pytest-{name}-{number}")) for number in range(1000))
    assert 0 < taken < 1000


@RELAXED
@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=4))
def test_any_mapping_is_a_configuration_or_is_refused(mapping: dict[str, Any]) -> None:
    try:
        config = RunConfig.from_mapping(mapping)
    except InputError:
        return
    assert RunConfig.from_mapping(config.to_mapping()) == config


@RELAXED
@given(st.binary(max_size=200) | TREES.map(lambda tree: json.dumps(tree).encode()))
def test_any_file_is_an_experiment_or_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_bytes(content)
    try:
        experiment.load(path)
    except InputError:
        return


@RELAXED
@given(st.dictionaries(st.sampled_from(["format", "blocks", "classes", "shape", "clients"]), TREES | st.just(1)))
def test_any_manifest_is_one_or_is_refused(tmp_path: Path, manifest: dict[str, Any]) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    try:
        ShardFolder(tmp_path)
    except InputError:
        return


@RELAXED
@given(TREES)
def test_any_body_under_a_sound_checksum_is_a_checkpoint_or_is_refused(tmp_path: Path, body: Any) -> None:
    text = json.dumps(body)
    outer = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text}
    (tmp_path / "00000001.json").write_text(json.dumps(outer))
    with pytest.raises((DamagedError, InputError)):
        load_checkpoint(tmp_path / "00000001.json")


@RELAXED
@given(st.dictionaries(st.sampled_from(["num-clients", "num-examples", "loss-mixed", "loss-separate"]), METRICS))
def test_any_metrics_are_losses_or_are_refused(metrics: dict[str, Any]) -> None:
    try:
        losses = read_losses(RecordDict({"losses": MetricRecord(metrics)}), ORDER)
    except ProtocolError:
        return
    assert 0 <= losses.mixed <= 1e30
    assert 1 <= losses.num_clients <= len(ORDER.clients)


def test_orders_and_updates_refuse_records_of_another_kind() -> None:
    for name in ("order", "update", "mixed"):
        content = RecordDict({name: ConfigRecord({"a": 1})})
        with pytest.raises(ProtocolError):
            read_order(content)
        with pytest.raises(ProtocolError):
            read_update(content, ORDER, LAYOUT, CHAINS)


@pytest.mark.parametrize("loss", [1.7e308, -1e31, 1e31])
def test_losses_that_could_overflow_a_mean_are_refused(loss: float) -> None:
    record = MetricRecord({"num-clients": 1, "num-examples": 1, "loss-mixed": loss, "loss-separate": 0.5})
    with pytest.raises(ProtocolError, match="loss-mixed must be"):
        read_losses(RecordDict({"losses": record}), ORDER)


def test_what_messages_show_is_short_and_one_line() -> None:
    bomb: Any = ["x"]
    for _ in range(30):
        bomb = [bomb] * 10
    for value in (bomb, 10**5000, -(10**5000), "line\nline" * 1000, {"k" * 999: bomb}, {1: 10**9999}):
        assert len(shown(value)) <= 160
        assert "\n" not in shown(value)
    assert shown(-3) == "-3"
    assert shown("sgd") == "'sgd'"


@pytest.mark.timeout(120)
def test_an_experiment_of_too_many_runs_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(json.dumps({"seed": list(range(1000)), "cycles": list(range(1, 1000)), "blocks": [1, 2]}))
    with pytest.raises(InputError, match="the lists make 1998000 runs; an experiment has at most 1000"):
        experiment.load(path)
