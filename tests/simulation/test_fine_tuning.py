"""Fine-tuning before predicting: each client's own model on its own test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perennial.client.engines.engine import Received, Work
from perennial.client.engines.loop import LoopEngine
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.data.row_shards import RowShards
from perennial.common.data.source import open_shards
from perennial.common.task import models
from perennial.common.task.models import arrays_of
from perennial.common.wire.arrays import encode
from perennial.common.wire.layout import Layout
from perennial.server.run.evaluate import Evaluator, TorchRight
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.training import train
from perennial.simulation.fine_tuning import TunedRight
from tests.server.conftest import FakeGrid

CONFIG = RunConfig(fine_tune_steps=3, batch_size=0, lr_mixed=0.5)


@pytest.fixture
def shards() -> RowShards:
    """Three clients, two blocks, each with a rule of its own; client 2 has no training rows of block 1."""
    rng = np.random.default_rng(0)
    client, block = rng.integers(0, 3, 300), rng.integers(0, 2, 300)
    x = rng.normal(size=(300, 4)).astype(np.float32)
    test = (rng.random(300) < 0.4) | ((client == 2) & (block == 1))
    y = ((x[:, 0] > 0) ^ (client == 1) ^ (block == 1)).astype(np.int64)
    return RowShards.of((x,), y, client=client, block=block, test=test, may_be_empty=True)


def test_a_test_row_is_answered_by_the_model_that_its_client_has_tuned_in_its_block(shards: RowShards) -> None:
    network = models.build("mlp", (4,), 2, seed=1)
    layout, engine = Layout.of(arrays_of(network)), LoopEngine(network)
    model, right = layout.flatten(arrays_of(network)), TorchRight(network, layout)
    evaluator = Evaluator(TunedRight(right, shards, engine, CONFIG), shards, layout)
    accuracies = evaluator.accuracies([[encode(model, layout)] * 2])
    assert accuracies is not None
    owner, y = shards.owner, shards.y
    assert owner is not None
    assert y is not None
    for block, found in enumerate(accuracies[0]):
        count = 0.0
        for client in range(3):
            rows, own = shards.shard(client, block).rows, shards.tests[block][owner[shards.tests[block]] == client]
            tuned = model
            if len(rows):
                work = Work(client, shards.x, y, np.tile(rows, (3, 1)), rows[:0])
                tuned = engine.train([Received(model, 0.5)], [work])[0].params
            count += right(tuned, shards.x, y, own).sum()
        assert found == pytest.approx(count / len(shards.tests[block]))


def test_data_that_do_not_know_whose_a_test_example_is_are_refused(shards: RowShards) -> None:
    network = models.build("mlp", (1, 8, 8), 10)
    right: Any = TorchRight(network, Layout.of(arrays_of(network)))
    with pytest.raises(InputError, match="fine-tune-steps needs data that know the client of each test example"):
        TunedRight(right, open_shards(RunConfig()), LoopEngine(network), CONFIG)


def test_a_server_refuses_to_fine_tune_before_it_writes_anything(tmp_path: Path) -> None:
    run = prepare([Run(RunConfig(fine_tune_steps=3), RunFolder(tmp_path / "run"))])
    with pytest.raises(InputError, match="fine-tune-steps is for flower-simulation: a server has no data"):
        train(run, FakeGrid({0: (0,)}), nodes=1)
    assert not (tmp_path / "run").exists()
