"""Partitions of Flower Datasets that come in blocks, and such data sets as a source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec

# Read when it is imported; no test speaks to the outside.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
datasets = pytest.importorskip("datasets")
flwr_datasets = pytest.importorskip("flwr_datasets")

from perennial.common.data.flower_dataset import FlowerDataset  # noqa: E402
from perennial.partitioners import BlockCyclicPartitioner, TimeBlockPartitioner  # noqa: E402

WEEK = "weekday: Mon-Fri, weekend: Sat,Sun"


def labelled(labels: Any) -> Any:
    return datasets.Dataset.from_dict({"row": list(range(len(labels))), "label": list(labels)})


def cyclic(dataset: Any, **options: Any) -> BlockCyclicPartitioner:
    found = BlockCyclicPartitioner(**{"num_partitions": 3, "num_blocks": 2, "labels_per_block": 2, **options})
    found.dataset = dataset
    return found


def numbers(dataset: Any) -> list[int]:
    return list(dataset["row"])


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
    st.integers(0, 5),
)
def test_the_papers_cut_gives_every_row_to_one_client_in_one_block(
    clients: int, blocks: int, block_skew: float, client_skew: float, shuffled: bool, seed: int
) -> None:
    dataset = labelled(np.random.default_rng(seed).permutation(np.arange(60) % 4))
    options = {"block_skew": block_skew, "client_skew": client_skew, "shuffled": shuffled, "seed": seed}
    cut = cyclic(dataset, num_partitions=clients, num_blocks=blocks, labels_per_block=4, **options)
    shards = [[numbers(cut.load_block(client, block)) for block in range(blocks)] for client in range(clients)]
    assert sorted(row for client in shards for block in client for row in block) == list(range(60))
    assert all(block for client in shards for block in client)
    for client in range(clients):
        assert numbers(cut.load_partition(client)) == [row for block in shards[client] for row in block]


def test_a_block_has_its_labels_and_is_judged_on_them() -> None:
    cut = cyclic(labelled(np.arange(40) % 4), labels_per_block=2)
    for block, labels in enumerate([{0, 1}, {2, 3}]):
        assert {label for client in range(3) for label in cut.load_block(client, block)["label"]} == labels
        assert set(cut.load_test(labelled([3, 2, 1, 0, 0]), block)["label"]) == labels


def test_it_works_inside_a_federated_dataset(tmp_path: Path) -> None:
    """What FederatedDataset does with a partitioner, on a file instead of a download."""
    labelled(np.arange(40) % 4).to_parquet(str(tmp_path / "train.parquet"))
    partitioner = BlockCyclicPartitioner(num_partitions=4, num_blocks=2, labels_per_block=2)
    fds = flwr_datasets.FederatedDataset(
        dataset="parquet", partitioners={"train": partitioner}, data_files={"train": str(tmp_path / "train.parquet")},
        cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    whole = [numbers(fds.load_partition(client)) for client in range(4)]
    assert sorted(row for one in whole for row in one) == list(range(40))
    assert numbers(fds.partitioners["train"].load_block(1, 0)) == whole[1][: len(partitioner.rows(1, 0))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_partitions": 0}, "num_partitions must be at least 1, got 0"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"block_skew": 1.5}, r"block_skew must be in \[0, 1\], got 1.5"),
        ({"labels_per_block": 1}, "cannot use all 4 labels"),
        ({"num_partitions": 30}, "too few for 30 clients"),
        ({"partition_by": "digit"}, "column digit is not there; the columns are row, label"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cyclic(labelled(np.arange(40) % 4), **options).load_partition(0)


@pytest.mark.parametrize("labels", [[0.5, 1.0], [-1, 0], ["a", "b"]])
def test_what_is_no_label_is_refused(labels: Any) -> None:
    with pytest.raises(InputError, match="column label must hold"):
        cyclic(labelled(labels)).load_partition(0)


def test_partitions_and_blocks_outside_are_refused() -> None:
    cut = cyclic(labelled(np.arange(40) % 4))
    with pytest.raises(InputError, match=r"partition_id must be in \[0, 3\), got 3"):
        cut.load_partition(3)
    with pytest.raises(InputError, match=r"block must be in \[0, 2\), got -1"):
        cut.load_block(0, -1)


def timed(when: Any, who: Any, zone: str = "UTC", **options: Any) -> TimeBlockPartitioner:
    found = TimeBlockPartitioner("who", "when", WEEK, zone, **options)
    found.dataset = datasets.Dataset.from_dict({"row": list(range(len(when))), "when": when, "who": who})
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4_102_444_799), st.sampled_from("XYZ")), min_size=1, max_size=40),
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]),
    st.sampled_from(["seconds", "text", "timestamps"]),
)
def test_every_row_is_in_the_block_that_the_clock_says(found: Any, zone: str, kind: str) -> None:
    moments = [datetime.fromtimestamp(second, UTC) for second, _ in found]
    when: Any = {"seconds": [second for second, _ in found], "text": [moment.isoformat() for moment in moments],
                 "timestamps": moments}[kind]  # fmt: skip
    cut = timed(when, [who for _, who in found], zone, may_be_empty=True)
    assert cut.partition_names == sorted({who for _, who in found})
    assert (cut.num_blocks, cut.block_names) == (2, ("weekday", "weekend"))
    spec = ClockSpec.parse(WEEK, zone)
    for client, name in enumerate(cut.partition_names):
        for block in range(2):
            expected = [row for row, (moment, (_, who)) in enumerate(zip(moments, found, strict=True))
                        if who == name and spec.block_at(moment) == block]  # fmt: skip
            assert numbers(cut.load_block(client, block)) == expected
    assert sum(len(cut.load_partition(client)) for client in range(cut.num_partitions)) == len(found)


def test_a_partition_without_rows_of_a_block_is_named() -> None:
    when = ["2026-03-27", "2026-03-28", "2026-03-28"]
    with pytest.raises(InputError, match=r"partition Y has no rows of block weekday; .* may_be_empty=True"):
        timed(when, ["X", "X", "Y"]).load_partition(0)
    assert numbers(timed(when, ["X", "X", "Y"], may_be_empty=True).load_block(1, 1)) == [2]


def test_a_time_that_is_none_is_named_by_its_row() -> None:
    with pytest.raises(InputError, match=r"the data set: column when must hold times .* got 'soon' in row 2"):
        timed(["2026-03-27", "soon"], ["X", "X"]).load_partition(0)


def saved(folder: Path, train: dict[str, Any], test: dict[str, Any] | None = None, features: Any = None) -> Path:
    splits = {"train": train, **({"test": test} if test else {})}
    made = {name: datasets.Dataset.from_dict(split, features) for name, split in splits.items()}
    datasets.DatasetDict(made).save_to_disk(str(folder / "saved"))
    return folder / "saved"


def columns(count: int) -> dict[str, Any]:
    return {
        "label": [row % 4 for row in range(count)],
        "number": [row / 2 for row in range(count)],
        "tokens": [[row, row + 1, 7] for row in range(count)],
    }


def test_a_saved_data_set_is_a_source(tmp_path: Path) -> None:
    source = FlowerDataset(
        path=saved(tmp_path, columns(40), columns(8)),
        partitioner=BlockCyclicPartitioner(num_partitions=5, num_blocks=2, labels_per_block=2),
        inputs=("number", "tokens"),
        target="label",
    )
    shards = source.open(RunConfig())
    assert (len(shards.clients), shards.blocks) == (5, 2)
    assert str(shards.signature) == "x0 float32, x1 int64 3, y in 4 classes"
    expected = cyclic(datasets.Dataset.from_dict(columns(40)), num_partitions=5)
    for client in shards.clients:
        shard = shards.shard(client, 1)
        assert (shard.x[0][shard.rows] * 2).tolist() == shard.rows.tolist()
        assert shard.rows.tolist() == expected.rows(client, 1).tolist()
    test = shards.test(1)
    assert test is not None
    assert np.asarray(test.y)[test.rows].tolist() == [2, 3, 2, 3]
    assert test.x[0][test.rows].tolist() == [1, 1.5, 3, 3.5]
    assert source.open(RunConfig()).shard(0, 0).rows.tolist() == shards.shard(0, 0).rows.tolist()


def test_images_become_channels_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5, 4, 3), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    path = saved(tmp_path, {"image": list(pixels), "label": [0, 1] * 4}, features=features)
    partitioner = BlockCyclicPartitioner(num_partitions=2, num_blocks=1, labels_per_block=2)
    shards = FlowerDataset(path=path, partitioner=partitioner, inputs=("image",), target="label").open(RunConfig())
    assert str(shards.signature) == "x uint8 3x5x4, y in 2 classes"
    assert (shards.x[0] == pixels.transpose(0, 3, 1, 2)).all()
    assert shards.test(0) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "nowhere"}, "nowhere cannot be read as a data set that was saved to disk"),
        ({"train": "training"}, "has no split 'training'; its splits are train"),
        ({"inputs": ("pixels",)}, "column pixels is not there; the columns are label, number, tokens"),
        ({"inputs": ("ragged",)}, "x must be of real numbers, got object"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    ragged = {"ragged": [[0] * (row % 3) for row in range(40)]}
    path = saved(tmp_path, {**columns(40), **(ragged if "ragged" in changes.get("inputs", ()) else {})})
    partitioner = BlockCyclicPartitioner(num_partitions=2, num_blocks=2, labels_per_block=2)
    plain: dict[str, Any] = {"path": path, "partitioner": partitioner, "inputs": ("number",), "target": "label"}
    with pytest.raises(InputError, match=message):
        FlowerDataset(**{**plain, **changes}).open(RunConfig())


def test_a_quickstarts_app_loads_its_blocks_through_the_partitioner(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    settings = {"PYTHONPATH": str(root), "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "tests.common.data.partitioned_app"]
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    for block, other in (("weekday", "weekend"), ("weekend", "weekday")):
        assert found[block][block] < 0.2
        assert found[block][other] > 1
