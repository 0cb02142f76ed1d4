"""What a node hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perennial.client.hosting import hosted
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from tests.conftest import make_data, write_folder


def test_a_simulated_node_hosts_every_pth_client() -> None:
    config = RunConfig(clients=7)
    shares = [hosted({"num-partitions": 3, "partition-id": place}, config).clients for place in range(3)]
    assert shares == [(0, 3, 6), (1, 4), (2, 5)]


def test_the_nodes_of_one_process_share_the_shards_of_their_run(tmp_path: Path) -> None:
    config = RunConfig(data=str(write_folder(tmp_path / "all", make_data(2, 6))))
    first, *others = (hosted({"num-partitions": 6, "partition-id": place}, config).shards for place in range(6))
    assert all(other is first for other in others)
    assert hosted({"num-partitions": 6, "partition-id": 0}, replace(config, seed=1)).shards is not first


def test_a_node_with_a_folder_hosts_all_of_it_whatever_the_run_config_says(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine", make_data(2, 3))
    node = hosted({"data": str(folder)}, RunConfig(data="digits"))
    assert (node.clients, node.shards.blocks, node.shards.shape) == ((0, 1, 2), 2, (2, 3))
    assert node.model == "mlp"


@pytest.mark.parametrize(("shape", "classes"), [("3x32x32", 3), ("2x3", 7), ("2x3", 0)])
def test_a_run_for_other_examples_than_the_node_holds_is_refused(tmp_path: Path, shape: str, classes: int) -> None:
    folder = write_folder(tmp_path / "mine", make_data(2, 3))
    with pytest.raises(InputError, match=r"shards here are 2x3 in 3; start flower-server with --shape 2x3 --classes 3"):
        hosted({"data": str(folder)}, RunConfig(shape=shape, classes=classes))
    assert hosted({"data": str(folder)}, RunConfig(shape="2x3", classes=3)).clients == (0, 1, 2)


def test_the_model_is_the_runs_or_goes_by_the_data() -> None:
    node = {"num-partitions": 1, "partition-id": 0}
    assert hosted(node, RunConfig(model="linear")).model == "linear"
    assert hosted(node, RunConfig()).model == "mlp"


@pytest.mark.parametrize(("said", "threads"), [({}, 1), ({"threads": 3}, 3)])
def test_a_node_has_the_threads_that_its_start_gave_it(said: dict[str, int], threads: int) -> None:
    assert hosted({"num-partitions": 1, "partition-id": 0, **said}, RunConfig()).threads == threads


def test_a_node_without_clients_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match="node hosts no client: the run has 2 clients; use at most as many nodes"):
        hosted({"num-partitions": 3, "partition-id": 2}, RunConfig(clients=2))


def test_a_node_whose_folder_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder of shards"):
        hosted({"data": str(tmp_path / "none")}, RunConfig())
